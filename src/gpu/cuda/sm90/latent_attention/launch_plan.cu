// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <numeric>
#include <type_traits>
#include <utility>

#include "gpu/cuda/sm90/latent_attention/launch_plan.hpp"
#include "gpu/cuda/sm90/latent_attention/work.cuh"
#include "gpu/tensor_map.hpp"
#include "op/common/checks.hpp"
#include "plan/implementation.hpp"

namespace fovea::gpu::sm90::latent {
namespace {

using detail::declined;

constexpr std::int64_t kMaxPairs = std::int64_t{1} << 30;
constexpr std::size_t kAlignment = 256;
constexpr std::int64_t kRowAlignment = 16;  // bytes
constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 1;
constexpr std::int64_t kMostOfGrid = 65535;  // blocks, in any dimension but the first

constexpr std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

using Attend = Result<void> (*)(const Params&, int, Stream);

/// The instance of an entry of the table, or null where it has none.
template <class Element, int kHeadDim, bool kEdges, std::size_t kIndex>
constexpr Attend attend_of() {
  constexpr Tuning tuning = kTunings[kIndex];
  constexpr DType dtype = std::is_same_v<Element, __half> ? DType::f16 : DType::bf16;
  if constexpr (tuning.has_instance(dtype, kHeadDim, kEdges)) {
    return launch_attend<Config<Element, kHeadDim, tuning.cluster, tuning.load, tuning.known_rows(), kEdges>>;
  } else {
    return nullptr;
  }
}

template <class Element, int kHeadDim, bool kEdges, std::size_t... kIndices>
Attend attend_of(const Call& call, std::index_sequence<kIndices...>) {
  constexpr std::array<Attend, sizeof...(kIndices)> all{attend_of<Element, kHeadDim, kEdges, kIndices>()...};
  return all[tuning_index(call)];
}

template <class Element, int kHeadDim>
Attend attend_of(const Call& call) {
  constexpr auto all = std::make_index_sequence<kTunings.size()>();
  return call.edges ? attend_of<Element, kHeadDim, true>(call, all) : attend_of<Element, kHeadDim, false>(call, all);
}

template <class Element>
Attend attend_of(const Call& call) {
  return call.head_dim == 576 ? attend_of<Element, 576>(call) : attend_of<Element, 512>(call);
}

/// Lays out the workspace, from `base` on, and returns its size. It holds partial results of all multiprocessors, two each, which is the
/// most that any bound needs.
std::size_t map(Params& params, int processors, std::byte* base) {
  std::size_t at = 0;
  const auto take = [&](auto*& pointer, std::size_t count) {
    using Item = std::remove_reference_t<decltype(*pointer)>;
    pointer = reinterpret_cast<Item*>(base + std::exchange(at, at + aligned(count * sizeof(Item))));
  };
  const std::size_t slots = 2 * static_cast<std::size_t>(processors);
  take(params.prefix, static_cast<std::size_t>(params.batch) + 3);
  take(params.first_work, static_cast<std::size_t>(processors));
  take(params.partial_rows, slots * kMathWarps * kMathWarpRows * kPartialRowStats);
  take(params.partial_ready, static_cast<std::size_t>(processors) * kMathWarps);
  take(params.partial, slots * kMathThreads * kPartialPieces * kPieceWords);
  return at + kAlignment;  // the workspace is aligned to less
}

}  // namespace

static std::int64_t row_tiles_of(const detail::AttentionCore& core, std::int64_t tokens) {
  return tiles_of(tokens * core.group(), kRowTile);
}

Call call_of(const detail::AttentionCore& core, Row rows, std::int64_t tokens) {
  return {
      .dtype = core.q_dtype, .head_dim = static_cast<int>(core.head_dim_qk), .rows = rows, .pairs = row_tiles_of(core, tokens) % 2 == 0};
}

Recipe::Recipe(const detail::AttentionCore& core, Device device_, const Call& call_, std::int64_t sequences, std::int64_t tokens)
    : device(device_), call(call_), tuning(kTunings[tuning_index(call_)]) {
  processors = properties(device)->multiprocessors;
  params.q_batch = core.q.batch, params.q_row = core.q.row, params.q_head = core.q.head;
  params.out_batch = core.out.batch, params.out_row = core.out.row, params.out_head = core.out.head;
  params.lse_batch = core.lse.batch, params.lse_row = core.lse.row, params.lse_head = core.lse.head;
  params.batch = static_cast<int>(sequences);
  params.seq_q = detail::FastDivmod(static_cast<int>(std::max<std::int64_t>(core.max_seq_q, 1)));
  params.max_kv_len = static_cast<int>(core.max_seq_k);
  params.heads_per_kv = detail::FastDivmod(static_cast<int>(core.group()));
  params.kv_heads = static_cast<int>(core.kv_heads);
  params.row_tiles = static_cast<int>(row_tiles_of(core, tokens));
  const std::int64_t tiles = std::max<std::int64_t>(std::int64_t{params.row_tiles} * params.kv_heads, 1);  // none without queries
  params.parts = static_cast<int>(std::clamp<std::int64_t>(processors / tiles, 1, kMaxParts));
  params.mask = core.mask;
  params.scale_log2 = core.scale * 1.44269504088896341f;
  params.overhead = kSequenceOverhead;
  params.whole = core.batch_invariant;
}

void Recipe::fix_schedule(std::int64_t keys) {
  const auto pairs = static_cast<int>(std::max<std::int64_t>(tiles_of(keys, kPair), 1));
  params.even = detail::EvenSchedule(params.parts, params.batch, pairs, params.overhead, params.whole);
}

Result<void> Recipe::prepare(const Params& ready, Stream stream) const {
  return ready.even.size > 0 ? Result<void>() : launch_schedule(ready, stream);
}

std::size_t Recipe::workspace_bytes() const {
  Params mapped = params;
  return map(mapped, processors, nullptr);
}

Params Recipe::params_in(Workspace workspace) const {
  Params mapped = params;
  const auto address = reinterpret_cast<std::uintptr_t>(workspace.data);
  map(mapped, processors, reinterpret_cast<std::byte*>((address + kAlignment - 1) / kAlignment * kAlignment));
  return mapped;
}

Result<void> Recipe::run(const Params& ready, Stream stream, bool prepared) const {
  if (!prepared) {
    if (Result<void> good = prepare(ready, stream); !good) return good;
  }
  const Attend attend = call.dtype == DType::f16 ? attend_of<__half>(call) : attend_of<__nv_bfloat16>(call);
  if (Result<void> good = attend(ready, device.ordinal, stream); !good) return good;
  const bool split = !ready.whole && ready.parts > 1 && (ready.even.size == 0 || ready.even.shares > 1);
  if (!split) return {};
  return (call.dtype == DType::f16 ? launch_combine<__half> : launch_combine<__nv_bfloat16>)(ready, 2 * processors, stream);
}

std::string Recipe::explain() const {
  const char* decoded = tuning.kernel == Kernel::specialised ? "keys one by one, decoded by four roles" : "keys one by one, decoded";
  const char* keys = tuning.load == Load::boxes ? "boxes of 8 keys" : tuning.load == Load::rows ? "keys one by one" : decoded;
  return "64 x 64 tiles, " + std::to_string(params.parts) + " parts of " + std::to_string(params.row_tiles * params.kv_heads) +
         " row tiles, clusters of " + std::to_string(tuning.cluster) + ", " + keys;
}

Row row_kind_of(const detail::LatentCacheView& cache, DType q_dtype) {
  switch (cache.format) {
    case CacheFormat::v32_fp8: return Row::v32;
    case CacheFormat::v4_fp8: return Row::v4;
    case CacheFormat::v41_fp8:
    case CacheFormat::v41_fp8_planar: return Row::v41;
    case CacheFormat::v41_fp4: return Row::fp4;
    case CacheFormat::rows: break;
  }
  return cache.dtype == q_dtype ? Row::plain : Row::e4m3;
}

/// Bytes from one block and from one token to the next. The scales of a packed token follow from these.
static std::array<std::int64_t, 2> token_strides(const detail::LatentCacheView& cache) {
  if (const PackedFormat* format = packed_format(cache.format)) return {cache.block_stride, format->codes_at(1)};
  const auto bytes = static_cast<std::int64_t>(size_of(cache.dtype));
  return {cache.strides.block * bytes, cache.strides.token * bytes};
}

std::int64_t place_unit(const detail::LatentCacheView& cache) {
  const auto [block, token] = token_strides(cache);
  std::int64_t unit = std::gcd(cache.blocks > 1 ? block : 0, cache.page > 1 ? token : 0);
  while (unit > kMost) unit = unit % 2 == 0 ? unit / 2 : kRowAlignment;
  return unit == 0 ? kRowAlignment : unit;
}

RowCache row_cache(const detail::LatentCacheView& cache, DType q_dtype, std::int64_t unit) {
  RowCache rows{.row = row_kind_of(cache, q_dtype), .blocks = static_cast<int>(cache.blocks)};
  rows.tokens = static_cast<std::uint32_t>(std::min(cache.blocks * cache.page, std::int64_t{1} << 31));
  rows.page = detail::FastDivmod(static_cast<int>(cache.page));
  const auto [block, token] = token_strides(cache);  // a stride of extent 1 is never used, and may be no multiple of the unit
  rows.block_stride = static_cast<std::uint32_t>(block / unit);
  rows.token_stride = static_cast<std::uint32_t>(token / unit);
  if (const PackedFormat* format = packed_format(cache.format)) {
    rows.scales_at = static_cast<int>(format->scales_at(0, cache.page));
    rows.scale_stride = static_cast<int>(format->scales_at(1, cache.page) - format->scales_at(0, cache.page) - token);
    return rows;
  }
  rows.head_stride = cache.strides.head * static_cast<std::int64_t>(size_of(cache.dtype));
  return rows;
}

Result<void> encode(CUtensorMap& map, const void* base, const TensorMapDesc& desc) {
  const Result<CUtensorMap> encoded = encode_tensor_map(base, desc);
  if (!encoded) return encoded.error();
  map = *encoded;
  return {};
}

bool boxes_reach(const std::array<std::int64_t, 3>& strides, std::int64_t bytes) {
  return std::all_of(strides.begin(), strides.end(), [&](std::int64_t stride) { return stride < kBoxStrideLimit / bytes; });
}

Result<void> Recipe::encode_queries(Params& filled, const detail::AttentionCore& core, bool ragged, const void* q) const {
  filled.copy_queries = filled.heads_per_kv.divisor % kBoxRows == 0 && core.q.head > 0 && (core.q.row > 0 || core.max_seq_q == 1) &&
                        (core.q.batch > 0 || ragged || core.batch == 1) &&
                        boxes_reach({core.q.head, core.q.row, ragged ? 0 : core.q.batch}, 2);
  if (!filled.copy_queries) return {};
  const auto at_least_8 = [](std::int64_t stride) { return std::max<std::int64_t>(stride, 8); };  // of a dimension of extent 1
  const std::int64_t slices = core.head_dim_qk / kSlice;
  TensorMapDesc queries{.dtype = core.q_dtype, .rank = 5};
  queries.dimensions = {{{kSlice, 1, kSlice},
                         {core.heads, core.q.head, kBoxRows},
                         {slices, kSlice, tuning.kernel == Kernel::specialised ? kHalfSlices : static_cast<int>(slices)},
                         {ragged ? core.total_q : core.max_seq_q, at_least_8(core.q.row), 1},
                         {ragged ? 1 : core.batch, at_least_8(core.q.batch), 1}}};
  return encode(filled.queries, q, queries);
}

Result<void> Recipe::encode_results(Params& filled, const detail::AttentionCore& core, bool ragged, void* out) const {
  filled.store_boxes = tuning.load == Load::rows && filled.heads_per_kv.divisor % kBoxRows == 0 && core.out.head > 0 &&
                       (core.out.row > 0 || core.max_seq_q == 1) && (core.out.batch > 0 || ragged || core.batch == 1) &&
                       boxes_reach({core.out.head, core.out.row, ragged ? 0 : core.out.batch}, 2);
  if (!filled.store_boxes) return {};
  const auto at_least_8 = [](std::int64_t stride) { return std::max<std::int64_t>(stride, 8); };  // of a dimension of extent 1
  TensorMapDesc results{.dtype = core.q_dtype, .rank = 5};
  results.dimensions = {{{kSlice, 1, kSlice},
                         {core.heads, core.out.head, kBoxRows},
                         {kValueDim / kSlice, kSlice, kHalfSlices},
                         {ragged ? core.total_q : core.max_seq_q, at_least_8(core.out.row), 1},
                         {ragged ? 1 : core.batch, at_least_8(core.out.batch), 1}}};
  return encode(filled.results, out, results);
}

/// `strides`: in elements of `bytes` bytes.
static Result<void> accept_rows(std::string_view name, const std::array<std::int64_t, 3>& strides, std::int64_t bytes,
                                std::int32_t alignment) {
  for (const std::int64_t stride : strides) {
    if (stride * bytes % kRowAlignment != 0)
      return declined(std::string(name) + " (a stride, in bytes)", stride * bytes, "a multiple of 16");
  }
  if (alignment < kRowAlignment) return declined(std::string(name) + " (alignment in bytes)", alignment, "16 or more");
  return {};
}

static Result<void> accept_rows(std::string_view name, const detail::RowStrides& strides, std::int32_t alignment) {
  return accept_rows(name, {strides.batch, strides.row, strides.head}, 2, alignment);
}

Result<void> accept_core(const detail::AttentionCore& core, std::int64_t sequences, std::int64_t rows) {
  if (core.q_dtype == DType::f32) return declined("q.dtype", "f32", "f16 or bf16");
  if (core.scale < 0) return declined("scale", "a negative one", "a positive one");
  if (Result<void> good = accept_rows("q", core.q, core.q_base_alignment); !good) return good;
  if (Result<void> good = accept_rows("out", core.out, core.out_base_alignment); !good) return good;
  if (core.max_seq_k >= kKeyLimit) return declined("keys of a sequence", core.max_seq_k, "less than 2^30");
  const std::int64_t pairs = tiles_of(core.max_seq_k, kPair) + 1 + kSequenceOverhead;
  if (pairs > kMaxPairs / std::max<std::int64_t>(sequences, 1))
    return declined("keys of a sequence", core.max_seq_k, "fewer: " + std::to_string(kMaxPairs * kPair) + " in all sequences");
  if (core.kv_heads > kMostOfGrid) return declined("kv_heads", core.kv_heads, std::to_string(kMostOfGrid) + " or fewer");
  if (rows > (1 << 26)) return declined("query rows of a sequence", rows, "2^26 or fewer");
  return {};
}

/// Whether all tokens lie below 2^32 - 1 units, which is Token::kNone.
static bool places_fit(const detail::LatentCacheView& cache, std::int64_t unit) {
  const auto [block, token] = token_strides(cache);
  const std::int64_t most = (std::int64_t{1} << 32) - 2, blocks = cache.blocks - 1, tokens = cache.page - 1;
  if (blocks > 0 && block / unit > most / blocks) return false;
  if (tokens > 0 && token / unit > most / tokens) return false;
  return std::max<std::int64_t>(blocks, 0) * (block / unit) + std::max<std::int64_t>(tokens, 0) * (token / unit) <= most;
}

Result<void> accept_cache(std::string_view name, const detail::LatentCacheView& cache, Load load, std::int64_t unit) {
  const std::string text(name);
  const bool packed = cache.format != CacheFormat::rows;
  const auto bytes = static_cast<std::int64_t>(packed ? 1 : size_of(cache.dtype));
  const detail::CacheStrides& strides = cache.strides;
  std::array<std::int64_t, 3> used{strides.block, strides.token, strides.head};
  if (packed) used = {cache.blocks > 1 ? cache.block_stride : 0};
  if (Result<void> good = accept_rows(name, used, bytes, cache.alignment); !good) return good;
  if (!packed && (strides.token == 0 || strides.block == 0)) return declined(text + ".rows.strides", "a broadcast one", "none");
  if (cache.page > kMost || cache.blocks > kMost) return declined(text + " (blocks, page)", "2^31 or more", "less");
  if (packed && cache.page > kMost / packed_format(cache.format)->bytes())
    return declined(text + " (bytes of a page)", "2^31 or more", "less");
  if (load != Load::boxes && !places_fit(cache, unit)) {
    return declined(text + " (units of " + std::to_string(unit) + " bytes, which divide the strides of all blocks and tokens)",
                    "2^32 or more", "fewer: a block stride that is a multiple of more bytes, such as those of a token");
  }
  return {};
}

}  // namespace fovea::gpu::sm90::latent
