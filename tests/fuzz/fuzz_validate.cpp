// SPDX-License-Identifier: Apache-2.0
/// Throws random descriptions at validate and plan. With clang: -fsanitize=fuzzer and FOVEA_LIBFUZZER; without, a main() of its own
/// drives the same entry with seeded random bytes: fuzz_validate [iterations] [seed].
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>

#include "fovea/fovea.hpp"

namespace {

using namespace fovea;

/// The fuzzer's bytes as numbers; zeros when they run out.
class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  std::uint8_t byte() { return at_ < size_ ? data_[at_++] : std::uint8_t{0}; }
  bool flag() { return (byte() & 1) != 0; }
  bool rarely() { return byte() < 24; }

  std::int64_t number() {
    constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
    constexpr std::int64_t kEdges[] = {0,
                                       1,
                                       -1,
                                       2,
                                       7,
                                       8,
                                       12,
                                       64,
                                       128,
                                       256,
                                       264,
                                       4096,
                                       1LL << 31,
                                       (1LL << 31) - 1,
                                       1LL << 32,
                                       1LL << 47,
                                       1LL << 48,
                                       1LL << 56,
                                       1LL << 62,
                                       kMax,
                                       kMax - 1,
                                       -kMax,
                                       std::numeric_limits<std::int64_t>::min()};
    const std::uint8_t kind = byte();
    if (kind < 96) return kEdges[kind % std::size(kEdges)];
    if (kind < 224) return byte();
    std::int64_t value = 0;
    for (int i = 0; i < 8; ++i) value = static_cast<std::int64_t>((static_cast<std::uint64_t>(value) << 8) | byte());
    return value;
  }
  std::int64_t small(std::int64_t most) { return byte() % (most + 1); }

  float real() {
    constexpr float kEdges[] = {0.0f,
                                1.0f,
                                -1.0f,
                                0.125f,
                                30.0f,
                                1e-40f,
                                3e38f,
                                -3e38f,
                                std::numeric_limits<float>::infinity(),
                                std::numeric_limits<float>::quiet_NaN()};
    return kEdges[byte() % std::size(kEdges)];
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_, at_ = 0;
};

/// Most descriptions stay sensible in most fields, so that the later checks and the planners are reached too.
void spoil(Bytes& bytes, TensorDesc& desc) {
  while (bytes.rarely()) {
    switch (bytes.small(5)) {
      case 0: desc.dtype = static_cast<DType>(bytes.small(9)); break;
      case 1: desc.rank = static_cast<int>(bytes.number()); break;
      case 2: desc.shape[static_cast<std::size_t>(bytes.small(3))] = bytes.number(); break;
      case 3: desc.strides[static_cast<std::size_t>(bytes.small(3))] = bytes.number(); break;
      case 4: desc.alignment = static_cast<std::int32_t>(bytes.number()); break;
      default: {
        std::int64_t& stride = desc.strides[static_cast<std::size_t>(bytes.small(3))];
        stride = static_cast<std::int64_t>(2 * static_cast<std::uint64_t>(stride));  // wraps
        break;
      }
    }
  }
}

void spoil(Bytes& bytes, std::int64_t& value) {
  if (bytes.rarely()) value = bytes.number();
}

struct Sizes {
  DType dtype, kv_dtype, out_dtype;
  std::int64_t batch, q, k, head, kv_head, dqk, dv, page;

  explicit Sizes(Bytes& bytes) {
    constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16, DType::e4m3};
    dtype = kv_dtype = out_dtype = kTypes[bytes.small(3)];
    batch = bytes.small(5), q = bytes.small(70), k = bytes.small(200);
    kv_head = 1 + bytes.small(3), head = kv_head * (1 + bytes.small(8));
    dqk = 8 * (1 + bytes.small(31)), dv = bytes.flag() ? dqk : 8 * (1 + bytes.small(31));
    page = 1 + bytes.small(63);
    if (dtype == DType::e4m3) out_dtype = DType::bf16;
    for (std::int64_t* size : {&batch, &q, &k, &head, &kv_head, &dqk, &dv, &page}) spoil(bytes, *size);
  }
};

BandMask mask(Bytes& bytes) {
  BandMask band{};
  if (bytes.flag()) band.left = bytes.number();
  if (bytes.flag()) band.right = bytes.number();
  if (bytes.rarely()) band.anchor = Anchor::top_left;
  if (bytes.rarely()) band.anchor = static_cast<Anchor>(7);
  return band;
}

std::optional<ScaleDesc> scale(Bytes& bytes, DType dtype) {
  if (dtype != DType::e4m3 && !bytes.rarely()) return std::nullopt;
  ScaleDesc desc{.batch_stride = bytes.small(8), .head_stride = bytes.small(2)};
  spoil(bytes, desc.batch_stride);
  spoil(bytes, desc.head_stride);
  return desc;
}

[[noreturn]] void broken(const std::string& promise) {
  std::fprintf(stderr, "broken promise: %s\n", promise.c_str());
  std::abort();
}

/// What must hold whatever the description was.
template <class Args>
void examine(const Result<Plan<Args>>& planned) {
  if (!planned) {
    const Error& error = planned.error();
    const bool invalid = error.code == ErrorCode::invalid_argument;
    if (!invalid && error.code != ErrorCode::unsupported) broken("planning fails as invalid_argument or unsupported: " + error.message);
    if (invalid && error.message.find(": got ") == std::string::npos) broken("an error says what it got: " + error.message);
    if (invalid && error.message.find(", want ") == std::string::npos) broken("an error says what it wants: " + error.message);
    if (!invalid && error.declines.empty()) broken("unsupported lists who declined");
    for (const Decline& decline : error.declines)
      if (decline.reason.empty()) broken(decline.implementation + " says why it declines");
    return;
  }
  if (planned->explain().find(planned->implementation()) == std::string::npos) broken("explain names the implementation");
  // Null pointers: refused, or there was nothing to do. Either way nothing may be touched.
  if (const Result<void> ran = planned->run({}); !ran && ran.error().message.empty()) broken("run says why it fails");
}

void fuzz_attention(Bytes& bytes) {
  const Sizes s(bytes);
  AttentionDesc desc{.mask = mask(bytes),
                     .scale = bytes.rarely() ? bytes.real() : 0,
                     .softcap = bytes.rarely() ? bytes.real() : 0,
                     .has_sink = bytes.flag()};
  if (bytes.flag()) {
    desc.ragged = RaggedDesc{s.batch, s.q, s.k};
    desc.q = contiguous(s.dtype, {s.q, s.head, s.dqk}), desc.out = contiguous(s.out_dtype, {s.q, s.head, s.dv});
    desc.k = contiguous(s.kv_dtype, {s.k, s.kv_head, s.dqk}), desc.v = contiguous(s.kv_dtype, {s.k, s.kv_head, s.dv});
    if (bytes.flag()) desc.lse = contiguous(DType::f32, {s.q, s.head});
    for (std::int64_t* bound : {&desc.ragged->batch, &desc.ragged->max_seq_q, &desc.ragged->max_seq_k}) spoil(bytes, *bound);
  } else {
    desc.q = contiguous(s.dtype, {s.batch, s.q, s.head, s.dqk}), desc.out = contiguous(s.out_dtype, {s.batch, s.q, s.head, s.dv});
    desc.k = contiguous(s.kv_dtype, {s.batch, s.k, s.kv_head, s.dqk}), desc.v = contiguous(s.kv_dtype, {s.batch, s.k, s.kv_head, s.dv});
    if (bytes.flag()) desc.lse = contiguous(DType::f32, {s.batch, s.head, s.q});
  }
  desc.q_scale = scale(bytes, s.dtype), desc.k_scale = scale(bytes, s.dtype), desc.v_scale = scale(bytes, s.dtype);
  for (TensorDesc* tensor : {&desc.q, &desc.k, &desc.v, &desc.out}) spoil(bytes, *tensor);
  if (desc.lse) spoil(bytes, *desc.lse);
  examine(plan_attention(desc, {}, {.batch_invariant = bytes.flag()}));
}

void fuzz_paged_attention(Bytes& bytes) {
  Sizes s(bytes);
  if (s.dtype == DType::e4m3) s.dtype = s.out_dtype;
  const std::int64_t blocks = bytes.small(50), width = bytes.small(20);
  PagedAttentionDesc desc{.mask = mask(bytes),
                          .scale = bytes.rarely() ? bytes.real() : 0,
                          .softcap = bytes.rarely() ? bytes.real() : 0,
                          .has_sink = bytes.flag()};
  desc.q = contiguous(s.dtype, {s.q, s.head, s.dqk}), desc.out = contiguous(s.out_dtype, {s.q, s.head, s.dv});
  desc.k_cache = contiguous(s.kv_dtype, {blocks, s.page, s.kv_head, s.dqk}),
  desc.v_cache = contiguous(s.kv_dtype, {blocks, s.page, s.kv_head, s.dv});
  desc.block_table = contiguous(DType::i32, {s.batch, width});
  if (bytes.flag()) desc.lse = contiguous(DType::f32, {s.q, s.head});
  spoil(bytes, desc.max_seq_q);
  spoil(bytes, desc.max_kv_len);
  desc.k_scale = scale(bytes, s.kv_dtype), desc.v_scale = scale(bytes, s.kv_dtype);
  for (TensorDesc* tensor : {&desc.q, &desc.k_cache, &desc.v_cache, &desc.out, &desc.block_table}) spoil(bytes, *tensor);
  if (desc.lse) spoil(bytes, *desc.lse);
  examine(plan_paged_attention(desc, {}, {.batch_invariant = bytes.flag()}));
}

void fuzz_paged_cache_append(Bytes& bytes) {
  Sizes s(bytes);
  if (s.dtype == DType::e4m3) s.dtype = s.out_dtype;
  const std::int64_t blocks = bytes.small(50);
  PagedCacheAppendDesc desc{};
  desc.k = contiguous(s.dtype, {s.q, s.kv_head, s.dqk}), desc.v = contiguous(s.dtype, {s.q, s.kv_head, s.dv});
  desc.k_cache = contiguous(s.kv_dtype, {blocks, s.page, s.kv_head, s.dqk}),
  desc.v_cache = contiguous(s.kv_dtype, {blocks, s.page, s.kv_head, s.dv});
  desc.k_scale = scale(bytes, s.kv_dtype), desc.v_scale = scale(bytes, s.kv_dtype);
  for (TensorDesc* tensor : {&desc.k, &desc.v, &desc.k_cache, &desc.v_cache}) spoil(bytes, *tensor);
  examine(plan_paged_cache_append(desc));
}

void fuzz_merge_states(Bytes& bytes) {
  const Sizes s(bytes);
  MergeStatesDesc desc{};
  desc.out = contiguous(s.out_dtype, {s.q, s.head, s.dv});
  desc.parts.assign(static_cast<std::size_t>(bytes.small(5)), {.out = desc.out, .lse = contiguous(DType::f32, {s.q, s.head})});
  if (bytes.flag()) desc.lse = contiguous(DType::f32, {s.q, s.head});
  spoil(bytes, desc.out);
  if (desc.lse) spoil(bytes, *desc.lse);
  for (auto& part : desc.parts) spoil(bytes, part.out), spoil(bytes, part.lse);
  examine(plan_merge_states(desc));
}

void fuzz_attention_backward(Bytes& bytes) {
  Sizes s(bytes);
  if (s.dtype == DType::e4m3 && !bytes.rarely()) s.dtype = DType::bf16;
  AttentionBackwardDesc desc{};
  desc.forward.mask = mask(bytes);
  desc.forward.has_sink = bytes.flag();
  const bool ragged = bytes.flag();
  const auto shaped = [&](std::int64_t rows, std::int64_t heads, std::int64_t dim) {
    return ragged ? contiguous(s.dtype, {rows, heads, dim}) : contiguous(s.dtype, {s.batch, rows, heads, dim});
  };
  if (ragged) desc.forward.ragged = RaggedDesc{s.batch, s.q, s.k};
  desc.forward.q = desc.dq = shaped(s.q, s.head, s.dqk), desc.forward.out = desc.dout = shaped(s.q, s.head, s.dv);
  desc.forward.k = desc.dk = shaped(s.k, s.kv_head, s.dqk), desc.forward.v = desc.dv = shaped(s.k, s.kv_head, s.dv);
  if (!bytes.rarely()) desc.forward.lse = ragged ? contiguous(DType::f32, {s.q, s.head}) : contiguous(DType::f32, {s.batch, s.head, s.q});
  for (TensorDesc* tensor : {&desc.forward.q, &desc.forward.k, &desc.forward.v, &desc.dout, &desc.dq, &desc.dk, &desc.dv})
    spoil(bytes, *tensor);
  examine(plan_attention_backward(desc));
}

LatentCacheDesc latent_cache(Bytes& bytes, const Sizes& s, std::int64_t row) {
  LatentCacheDesc cache{.format = static_cast<CacheFormat>(bytes.small(bytes.rarely() ? 9 : 5))};
  cache.blocks = bytes.small(50), cache.page = s.page;
  cache.rows = contiguous(bytes.rarely() ? s.kv_dtype : s.dtype, {cache.blocks, s.page, bytes.rarely() ? s.kv_head : 1, row});
  spoil(bytes, cache.rows);
  for (std::int64_t* size : {&cache.blocks, &cache.page, &cache.block_stride}) spoil(bytes, *size);
  return cache;
}

std::int64_t latent_row(Bytes& bytes) { return bytes.rarely() ? bytes.number() : bytes.flag() ? 576 : 512; }

void fuzz_latent_attention(Bytes& bytes) {
  Sizes s(bytes);
  const std::int64_t row = latent_row(bytes);
  const bool ragged = bytes.flag();
  const auto shaped = [&](std::int64_t dim) {
    return ragged ? contiguous(s.dtype, {s.q, s.head, dim}) : contiguous(s.dtype, {s.batch, s.q, s.head, dim});
  };
  LatentAttentionDesc desc{.q = shaped(row), .out = shaped(512), .block_table = contiguous(DType::i32, {s.batch, bytes.small(20)})};
  desc.cache = latent_cache(bytes, s, row);
  desc.mask = bytes.flag() ? mask(bytes) : causal();
  desc.scale = bytes.rarely() ? bytes.real() : 0;
  desc.has_scale = bytes.rarely();
  if (bytes.flag()) desc.lse = ragged ? contiguous(DType::f32, {s.q, s.head}) : contiguous(DType::f32, {s.batch, s.head, s.q});
  spoil(bytes, desc.max_seq_q);
  spoil(bytes, desc.max_kv_len);
  for (TensorDesc* tensor : {&desc.q, &desc.out, &desc.block_table}) spoil(bytes, *tensor);
  if (desc.lse) spoil(bytes, *desc.lse);
  examine(plan_latent_attention(desc, {}, {.batch_invariant = bytes.flag()}));
}

void fuzz_sparse_latent_attention(Bytes& bytes) {
  Sizes s(bytes);
  const std::int64_t row = latent_row(bytes);
  const bool flat = bytes.flag();
  const auto shaped = [&](DType dtype, std::int64_t dim) {
    return flat ? contiguous(dtype, {s.q, s.head, dim}) : contiguous(dtype, {s.batch, s.q, s.head, dim});
  };
  const auto selection = [&] {
    const std::int64_t topk = bytes.small(200);
    SparseLatentAttentionDesc::Selection list{.cache = latent_cache(bytes, s, row), .has_topk_length = bytes.flag()};
    list.indices = flat ? contiguous(DType::i32, {s.q, topk}) : contiguous(DType::i32, {s.batch, s.q, topk});
    spoil(bytes, list.indices);
    return list;
  };
  SparseLatentAttentionDesc desc{.q = shaped(s.dtype, row), .out = shaped(s.dtype, 512), .main = selection(), .has_sink = bytes.flag()};
  if (bytes.flag()) desc.extra = selection();
  desc.scale = bytes.rarely() ? bytes.real() : 0;
  const TensorDesc numbers = flat ? contiguous(DType::f32, {s.q, s.head}) : contiguous(DType::f32, {s.batch, s.head, s.q});
  if (bytes.flag()) desc.lse = numbers;
  if (bytes.flag()) desc.max_logits = numbers;
  spoil(bytes, desc.q), spoil(bytes, desc.out);
  if (desc.max_logits) spoil(bytes, *desc.max_logits);
  examine(plan_sparse_latent_attention(desc, {}, {.batch_invariant = bytes.flag()}));
}

void fuzz_latent_cache_conversion(Bytes& bytes) {
  const Sizes s(bytes);
  const std::int64_t row = latent_row(bytes);
  LatentCacheConversionDesc desc{.rows = contiguous(s.dtype, {s.q, row}), .cache = latent_cache(bytes, s, row)};
  desc.rule = static_cast<ScaleRule>(bytes.small(bytes.rarely() ? 9 : 1));
  spoil(bytes, desc.rows);
  examine(plan_quantize_latent_cache(desc));
  examine(plan_dequantize_latent_cache(desc));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes bytes(data, size);
  switch (bytes.small(7)) {
    case 0: fuzz_attention(bytes); break;
    case 1: fuzz_paged_attention(bytes); break;
    case 2: fuzz_paged_cache_append(bytes); break;
    case 3: fuzz_attention_backward(bytes); break;
    case 4: fuzz_latent_attention(bytes); break;
    case 5: fuzz_sparse_latent_attention(bytes); break;
    case 6: fuzz_latent_cache_conversion(bytes); break;
    default: fuzz_merge_states(bytes); break;
  }
  return 0;
}

#ifndef FOVEA_LIBFUZZER
int main(int argc, char** argv) {
  const long iterations = argc > 1 ? std::atol(argv[1]) : 100000;
  const unsigned long seed = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 1;
  std::mt19937_64 random(seed);
  std::uint8_t data[256];
  for (long i = 0; i < iterations; ++i) {
    for (std::size_t at = 0; at < sizeof data; at += 8) {
      const std::uint64_t word = random();
      std::memcpy(data + at, &word, 8);
    }
    LLVMFuzzerTestOneInput(data, sizeof data);
  }
  std::printf("%ld random descriptions from seed %lu\n", iterations, seed);
}
#endif
