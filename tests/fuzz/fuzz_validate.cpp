// SPDX-License-Identifier: Apache-2.0
/// Throws random descriptions at validate and plan, on every device of this machine and one that need not be. With clang: -fsanitize=fuzzer
/// and FOVEA_LIBFUZZER; without, a main() of its own drives the same entry with seeded random bytes: fuzz_validate [iterations] [seed].
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "descriptions.hpp"
#include "op/attention/fields.hpp"
#include "op/attention_backward/fields.hpp"
#include "op/index_logits/fields.hpp"
#include "op/latent_attention/fields.hpp"
#include "op/paged_attention/fields.hpp"
#include "op/paged_cache_append/fields.hpp"
#include "op/topk_rows/fields.hpp"

namespace {

using namespace fovea;
using namespace fovea::fuzz;

[[noreturn]] void broken(const std::string& promise) {
  std::fprintf(stderr, "broken promise: %s\n", promise.c_str());
  std::abort();
}

/// Checks what must hold whatever the description was.
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

/// `plan(device)`: the same description each time.
template <class MakePlan>
void examine_on_all_devices(MakePlan&& plan) {
  static const std::vector<DeviceInfo> all = devices();
  for (const DeviceInfo& info : all) examine(plan(info.device));
  examine(plan(Device{.backend = Backend::cuda, .capability = 90}));  // which need not be here
  examine(plan(Device{.backend = Backend::hip, .capability = 94}));
}

void fuzz_attention(Bytes& bytes) {
  const Sizes s(bytes);
  const bool ragged = bytes.flag();
  const auto shaped = [&](DType dtype, std::int64_t rows, std::int64_t heads, std::int64_t dim) {
    return ragged ? contiguous(dtype, {rows, heads, dim}) : contiguous(dtype, {s.batch, rows, heads, dim});
  };
  AttentionDesc desc{.q = shaped(s.dtype, s.q, s.head, s.dqk), .k = shaped(s.kv_dtype, s.k, s.kv_head, s.dqk)};
  desc.v = shaped(s.kv_dtype, s.k, s.kv_head, s.dv), desc.out = shaped(s.out_dtype, s.q, s.head, s.dv);
  desc.lse = ragged ? contiguous(DType::f32, {s.q, s.head}) : contiguous(DType::f32, {s.batch, s.head, s.q});
  if (ragged) desc.ragged = RaggedDesc{s.batch, s.q, s.k};
  randomise<detail::kAttentionFields>(bytes, desc, s.dtype);
  const PlanOptions options{.batch_invariant = bytes.flag()};
  examine_on_all_devices([&](Device device) { return plan_attention(desc, device, options); });
}

/// Now and then a cache of codes in place of plain rows, [blocks, page, kv_head, dim].
void make_codes(Bytes& bytes, TensorDesc& cache, KvFormat& format, std::optional<TensorDesc>& scales) {
  if (!bytes.flag()) return;
  const KvRowFormat& row = kKvFormats[static_cast<std::size_t>(bytes.small(std::size(kKvFormats) - 1))];
  const std::int64_t dim = cache.shape[3];
  format = row.format;
  cache = contiguous(row.code == KvCode::e4m3 && bytes.flag() ? DType::e4m3 : DType::i8,
                     {cache.shape[0], cache.shape[1], cache.shape[2], row.code_bytes(dim)});
  constexpr DType kScales[] = {DType::f32, DType::f16, DType::i8, DType::e4m3};
  const DType dtype = row.group != 0 ? DType::i8 : bytes.rarely() ? kScales[bytes.small(3)] : DType::f32;
  if (!row.has_scales()) return;
  scales = row.group == 0 ? contiguous(dtype, {cache.shape[0], cache.shape[1], cache.shape[2]})
                          : contiguous(dtype, {cache.shape[0], cache.shape[1], cache.shape[2], row.scales(dim)});
}

void fuzz_paged_attention(Bytes& bytes) {
  Sizes s(bytes);
  if (s.dtype == DType::e4m3) s.dtype = s.out_dtype;
  const std::int64_t blocks = bytes.small(50), width = bytes.small(20);
  PagedAttentionDesc desc{};
  desc.q = contiguous(s.dtype, {s.q, s.head, s.dqk}), desc.out = contiguous(s.out_dtype, {s.q, s.head, s.dv});
  desc.k_cache = contiguous(s.kv_dtype, {blocks, s.page, s.kv_head, s.dqk}),
  desc.v_cache = contiguous(s.kv_dtype, {blocks, s.page, s.kv_head, s.dv});
  desc.block_table = contiguous(DType::i32, {s.batch, width});
  desc.lse = contiguous(DType::f32, {s.q, s.head});
  make_codes(bytes, desc.k_cache, desc.k_format, desc.k_scale_cache);
  make_codes(bytes, desc.v_cache, desc.v_format, desc.v_scale_cache);
  randomise<detail::kPagedAttentionFields>(bytes, desc, s.kv_dtype);
  const PlanOptions options{.batch_invariant = bytes.flag()};
  examine_on_all_devices([&](Device device) { return plan_paged_attention(desc, device, options); });
}

void fuzz_paged_cache_append(Bytes& bytes) {
  Sizes s(bytes);
  if (s.dtype == DType::e4m3) s.dtype = s.out_dtype;
  const std::int64_t blocks = bytes.small(50);
  PagedCacheAppendDesc desc{};
  desc.k = contiguous(s.dtype, {s.q, s.kv_head, s.dqk}), desc.v = contiguous(s.dtype, {s.q, s.kv_head, s.dv});
  desc.k_cache = contiguous(s.kv_dtype, {blocks, s.page, s.kv_head, s.dqk}),
  desc.v_cache = contiguous(s.kv_dtype, {blocks, s.page, s.kv_head, s.dv});
  make_codes(bytes, desc.k_cache, desc.k_format, desc.k_scale_cache);
  make_codes(bytes, desc.v_cache, desc.v_format, desc.v_scale_cache);
  randomise<detail::kPagedCacheAppendFields>(bytes, desc, s.kv_dtype);
  examine_on_all_devices([&](Device device) { return plan_paged_cache_append(desc, device); });
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
  examine_on_all_devices([&](Device device) { return plan_merge_states(desc, device); });
}

void fuzz_attention_backward(Bytes& bytes) {
  Sizes s(bytes);
  if (s.dtype == DType::e4m3 && !bytes.rarely()) s.dtype = DType::bf16;
  AttentionBackwardDesc desc{};
  const bool ragged = bytes.flag();
  const auto shaped = [&](std::int64_t rows, std::int64_t heads, std::int64_t dim) {
    return ragged ? contiguous(s.dtype, {rows, heads, dim}) : contiguous(s.dtype, {s.batch, rows, heads, dim});
  };
  if (ragged) desc.forward.ragged = RaggedDesc{s.batch, s.q, s.k};
  desc.forward.q = desc.dq = shaped(s.q, s.head, s.dqk), desc.forward.out = desc.dout = shaped(s.q, s.head, s.dv);
  desc.forward.k = desc.dk = shaped(s.k, s.kv_head, s.dqk), desc.forward.v = desc.dv = shaped(s.k, s.kv_head, s.dv);
  const TensorDesc lse = ragged ? contiguous(DType::f32, {s.q, s.head}) : contiguous(DType::f32, {s.batch, s.head, s.q});
  randomise<detail::kDenseFields>(bytes, desc.forward, s.dtype);
  if (bytes.flag()) desc.dlse = lse;
  randomise<detail::kAttentionBackwardFields>(bytes, desc, s.dtype);
  if (!bytes.rarely()) desc.forward.lse = lse;
  const PlanOptions options{.batch_invariant = bytes.flag(), .deterministic = bytes.flag()};
  examine_on_all_devices([&](Device device) { return plan_attention_backward(desc, device, options); });
}

LatentCacheDesc latent_cache(Bytes& bytes, const Sizes& s, std::int64_t row) {
  LatentCacheDesc cache{.format = static_cast<CacheFormat>(bytes.small(bytes.rarely() ? 9 : 5))};
  cache.blocks = bytes.small(50), cache.page = s.page;
  cache.rows = contiguous(bytes.rarely() ? s.kv_dtype : s.dtype, {cache.blocks, s.page, bytes.rarely() ? s.kv_head : 1, row});
  spoil(bytes, cache.rows);
  for (std::int64_t* size : {&cache.blocks, &cache.page, &cache.block_stride}) spoil(bytes, *size);
  if (bytes.flag()) cache.alignment = 16;
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
  desc.lse = ragged ? contiguous(DType::f32, {s.q, s.head}) : contiguous(DType::f32, {s.batch, s.head, s.q});
  randomise<detail::kLatentAttentionFields>(bytes, desc, s.dtype);
  if (bytes.flag()) desc.mask = causal();
  if (!bytes.rarely()) desc.has_scale = false;
  const PlanOptions options{.batch_invariant = bytes.flag()};
  examine_on_all_devices([&](Device device) { return plan_latent_attention(desc, device, options); });
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
  const PlanOptions options{.batch_invariant = bytes.flag()};
  examine_on_all_devices([&](Device device) { return plan_sparse_latent_attention(desc, device, options); });
}

void fuzz_latent_cache_conversion(Bytes& bytes) {
  const Sizes s(bytes);
  const std::int64_t row = latent_row(bytes);
  LatentCacheConversionDesc desc{.rows = contiguous(s.dtype, {s.q, row}), .cache = latent_cache(bytes, s, row)};
  desc.rule = static_cast<ScaleRule>(bytes.small(bytes.rarely() ? 9 : 1));
  spoil(bytes, desc.rows);
  examine_on_all_devices([&](Device device) { return plan_quantize_latent_cache(desc, device); });
  examine_on_all_devices([&](Device device) { return plan_dequantize_latent_cache(desc, device); });
}

QuantizeAndAttendDesc quantized_whole(Bytes& bytes, const Sizes& s, bool ragged) {
  const auto shaped = [&](std::int64_t rows, std::int64_t heads, std::int64_t dim) {
    return ragged ? contiguous(s.dtype, {rows, heads, dim}) : contiguous(s.dtype, {s.batch, rows, heads, dim});
  };
  QuantizeAndAttendDesc desc{.q = shaped(s.q, s.head, s.dqk), .k = shaped(s.k, s.kv_head, s.dqk), .v = shaped(s.k, s.kv_head, s.dv)};
  desc.out = shaped(s.q, s.head, s.dv);
  desc.mask = mask(bytes);
  desc.groups = {static_cast<Int8Granularity>(bytes.small(bytes.rarely() ? 9 : 2)), bytes.flag() ? 16 : 32};
  desc.v_dtype = bytes.rarely() ? s.dtype : bytes.flag() ? DType::e4m3 : DType::f16;
  desc.scale = bytes.rarely() ? bytes.real() : 0;
  desc.smooth_k = bytes.flag(), desc.smooth_v = bytes.flag();
  if (ragged) desc.ragged = RaggedDesc{s.batch, s.q, s.k};
  if (bytes.flag()) desc.lse = ragged ? contiguous(DType::f32, {s.q, s.head}) : contiguous(DType::f32, {s.batch, s.head, s.q});
  return desc;
}

/// The steps are those of the whole, each spoilt by itself.
void fuzz_quantized_steps(Bytes& bytes, const QuantizeAndAttendDesc& whole) {
  const auto twin = [](TensorDesc like, DType dtype) {
    like.dtype = dtype;
    return like;
  };
  QuantizeQkInt8Desc qk{.q = whole.q, .k = whole.k, .ragged = whole.ragged, .groups = whole.groups};
  qk.q_int8 = twin(whole.q, DType::i8), qk.k_int8 = twin(whole.k, DType::i8);
  qk.q_scale = whole.groups.q_scale(whole.q, whole.ragged), qk.k_scale = whole.groups.k_scale(whole.k, whole.ragged);
  if (whole.smooth_k || bytes.rarely()) qk.k_mean = Int8Groups::channels(whole.k, whole.ragged);
  if (whole.smooth_k || bytes.rarely()) qk.lse_shift = whole.lse;
  QuantizeVDesc v{.v = whole.v, .v_out = twin(whole.v, whole.v_dtype), .ragged = whole.ragged};
  if (whole.v_dtype == DType::e4m3 || bytes.rarely()) v.v_scale = Int8Groups::channels(whole.v, whole.ragged);
  if (whole.smooth_v) v.v_mean = Int8Groups::channels(whole.v, whole.ragged);
  QuantizedAttentionDesc attention{.q = qk.q_int8, .k = qk.k_int8, .v = v.v_out, .out = whole.out};
  attention.q_scale = qk.q_scale, attention.k_scale = qk.k_scale, attention.v_scale = v.v_scale, attention.v_mean = v.v_mean;
  attention.lse = whole.lse, attention.lse_shift = qk.lse_shift;
  attention.ragged = whole.ragged, attention.mask = whole.mask, attention.scale = whole.scale, attention.groups = whole.groups;
  for (TensorDesc* tensor : {&qk.q, &qk.k_int8, &qk.q_scale, &qk.k_scale, &v.v, &v.v_out, &attention.q, &attention.v, &attention.q_scale})
    spoil(bytes, *tensor);
  for (std::optional<TensorDesc>* tensor : {&qk.k_mean, &qk.lse_shift, &v.v_scale, &v.v_mean, &attention.v_scale, &attention.lse_shift})
    if (*tensor) spoil(bytes, **tensor);
  examine_on_all_devices([&](Device device) { return plan_quantize_qk_int8(qk, device); });
  examine_on_all_devices([&](Device device) { return plan_quantize_v(v, device); });
  examine_on_all_devices([&](Device device) { return plan_quantized_attention(attention, device); });
}

void fuzz_quantized_attention(Bytes& bytes) {
  Sizes s(bytes);
  if (s.dtype == DType::e4m3 && !bytes.rarely()) s.dtype = DType::bf16;
  if (!bytes.rarely()) s.dqk = s.dv = 64;
  QuantizeAndAttendDesc whole = quantized_whole(bytes, s, bytes.flag());
  const std::int64_t sizes[] = {s.batch, s.q, s.k, s.head, s.kv_head, s.dqk, s.dv};
  const bool sensible = std::all_of(std::begin(sizes), std::end(sizes), [](std::int64_t size) { return size >= 0 && size <= 4096; });
  if (sensible) fuzz_quantized_steps(bytes, whole);  // the shapes of scales are for sizes that somebody has
  if (bytes.rarely()) whole.groups.warp_rows = static_cast<int>(bytes.number());
  for (TensorDesc* tensor : {&whole.q, &whole.k, &whole.v, &whole.out}) spoil(bytes, *tensor);
  if (whole.lse) spoil(bytes, *whole.lse);
  examine_on_all_devices([&](Device device) { return plan_quantize_and_attend(whole, device); });
}

void fuzz_index_logits(Bytes& bytes) {
  const Sizes s(bytes);
  const std::int64_t dim = bytes.rarely() ? s.dqk : bytes.flag() ? 64 : 128, blocks = bytes.small(50), rows = s.q;
  const bool paged = bytes.flag();
  IndexLogitsDesc desc{.q = contiguous(DType::e4m3, {rows, s.head, dim})};
  desc.k = paged ? contiguous(DType::e4m3, {blocks, s.page, dim}) : contiguous(DType::e4m3, {s.k, dim});
  desc.k_scale = paged ? contiguous(DType::f32, {blocks, s.page}) : contiguous(DType::f32, {s.k});
  desc.weights = contiguous(DType::f32, {rows, s.head});
  desc.out = contiguous(bytes.rarely() ? s.dtype : DType::f32, {rows, s.k});
  desc.block_table = contiguous(DType::i32, {bytes.rarely() ? s.batch : 1, bytes.small(20)});
  randomise<detail::kIndexLogitsFields>(bytes, desc, s.dtype);
  if (!bytes.rarely()) {
    desc.has_kv_len = paged, desc.has_first = desc.has_first && !paged, desc.has_last = desc.has_last && !paged;
    if (!paged) desc.block_table.reset();
  }
  examine_on_all_devices([&](Device device) { return plan_index_logits(desc, device); });
}

void fuzz_topk_rows(Bytes& bytes) {
  Sizes s(bytes);
  if (s.dtype == DType::e4m3 && !bytes.rarely()) s.dtype = s.out_dtype;
  TopkRowsDesc desc{.logits = contiguous(s.dtype, {s.q, s.k}), .out = contiguous(DType::i32, {s.q, bytes.small(200)})};
  desc.block_table = contiguous(DType::i32, {bytes.rarely() ? s.batch : 1, bytes.small(20)});
  randomise<detail::kTopkRowsFields>(bytes, desc, s.dtype);
  if (!bytes.rarely()) desc.page = desc.block_table ? s.page : 0;
  examine_on_all_devices([&](Device device) { return plan_topk_rows(desc, device); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes bytes(data, size);
  switch (bytes.small(10)) {
    case 0: fuzz_attention(bytes); break;
    case 1: fuzz_paged_attention(bytes); break;
    case 2: fuzz_paged_cache_append(bytes); break;
    case 3: fuzz_attention_backward(bytes); break;
    case 4: fuzz_latent_attention(bytes); break;
    case 5: fuzz_sparse_latent_attention(bytes); break;
    case 6: fuzz_latent_cache_conversion(bytes); break;
    case 7: fuzz_quantized_attention(bytes); break;
    case 8: fuzz_index_logits(bytes); break;
    case 9: fuzz_topk_rows(bytes); break;
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
