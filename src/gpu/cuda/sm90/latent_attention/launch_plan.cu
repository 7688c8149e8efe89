// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <numeric>
#include <type_traits>
#include <utility>

#include "gpu/cuda/common/attention_plan.hpp"
#include "gpu/cuda/common/instances.hpp"
#include "gpu/cuda/sm90/latent_attention/launch_plan.hpp"
#include "gpu/cuda/sm90/latent_attention/work.cuh"
#include "gpu/tensor_map.hpp"
#include "op/common/checks.hpp"
#include "op/common/workspace_arena.hpp"
#include "plan/implementation.hpp"

namespace fovea::gpu::sm90::latent {
namespace {

using detail::declined;

constexpr std::int64_t kMaxPairs = std::int64_t{1} << 30;
constexpr std::size_t kAlignment = 256;     // bytes, of the first partial result
constexpr std::int64_t kRowAlignment = 16;  // bytes
constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 1;
constexpr std::int64_t kMostOfGrid = 65535;  // blocks, in any dimension but the first

template <class Element>
Attend attend_for(const Call& call) {
  return function_of_row<kTunings.size()>(static_cast<int>(tuning_index(call)), [](auto row) { return &attend_of<Element, row.value>; })(
      call.head_dim, call.edges);
}

/// Lays out the workspace from `base` on and returns its size. Each multiprocessor has two partial results, the most that any call needs.
std::size_t map_workspace(Params& params, int multiprocessors, std::byte* base) {
  detail::WorkspaceArena arena(base);
  const std::int64_t slots = 2 * std::int64_t{multiprocessors};
  params.partial = arena.take<uint2>(slots * kMathThreads * kPartialPieces * kPieceWords);
  params.partial_rows = arena.take<float>(slots * kMathWarps * kMathWarpRows * kPartialRowStats);
  params.first_work = arena.take<WorkTile>(multiprocessors);
  params.partial_ready = arena.take<int>(std::int64_t{multiprocessors} * kMathWarps);
  params.prefix = arena.take<int>(std::int64_t{params.batch} + 3);
  return arena.bytes() + kAlignment;  // the caller's workspace is aligned to less
}

/// TMA boxes of eight heads of one token, in `slices` slices of columns; false where the layout does not allow them.
Result<bool> encode_heads(CUtensorMap& map, const LaunchPlan& plan, const detail::AttentionCore& core, const void* data,
                          const detail::RowStrides& strides, TensorMapDesc::Dimension slices) {
  const bool ragged = plan.ragged;
  const bool reached = core.group() % kBoxRows == 0 && strides.head > 0 && (strides.row > 0 || core.max_seq_q == 1) &&
                       (strides.batch > 0 || ragged || core.batch == 1) &&
                       tma_reaches({strides.head, strides.row, ragged ? 0 : strides.batch}, 2);
  if (!reached) return false;
  const auto at_least_8 = [](std::int64_t stride) { return std::max<std::int64_t>(stride, 8); };  // for a dimension of extent 1
  TensorMapDesc heads{.dtype = core.q_dtype, .rank = 5};
  heads.dimensions = {{{kSlice, 1, kSlice},
                       {core.heads, strides.head, kBoxRows},
                       slices,
                       {ragged ? core.total_q : core.max_seq_q, at_least_8(strides.row), 1},
                       {ragged ? 1 : core.batch, at_least_8(strides.batch), 1}}};
  if (Result<void> good = encode(map, data, heads); !good) return good.error();
  return true;
}

}  // namespace

static std::int64_t query_tiles_of(const detail::AttentionCore& core, std::int64_t tokens) {
  return detail::ceil_div(tokens * core.group(), kQueryTile);
}

Call call_of(const detail::AttentionCore& core, Row rows, std::int64_t tokens) {
  return {
      .dtype = core.q_dtype, .head_dim = static_cast<int>(core.head_dim_qk), .rows = rows, .pairs = query_tiles_of(core, tokens) % 2 == 0};
}

LaunchPlan::LaunchPlan(const detail::AttentionCore& core, Device device_, const Call& call_, std::int64_t sequences, std::int64_t tokens)
    : device(device_), call(call_), tuning(kTunings[tuning_index(call_)]) {
  multiprocessors = properties(device)->multiprocessors;
  params.q_strides = core.q;
  params.out_strides = core.out;
  params.lse_strides = core.lse;
  params.batch = static_cast<int>(sequences);
  params.seq_q = divmod_by(core.max_seq_q);
  params.max_kv_len = static_cast<int>(core.max_seq_k);
  params.heads_per_kv = divmod_by(core.group());
  params.kv_heads = static_cast<int>(core.kv_heads);
  params.query_tiles = static_cast<int>(query_tiles_of(core, tokens));
  const std::int64_t tiles = std::max<std::int64_t>(std::int64_t{params.query_tiles} * params.kv_heads, 1);  // none without queries
  params.ctas = static_cast<int>(std::clamp<std::int64_t>(multiprocessors / tiles, 1, kMaxCtas));
  params.mask = core.mask;
  params.scale_log2 = core.scale * 1.44269504088896341f;
  params.overhead = kSequenceOverhead;
  params.whole = core.batch_invariant;
}

void LaunchPlan::fix_schedule(std::int64_t keys) {
  const auto pairs = static_cast<int>(std::max<std::int64_t>(detail::ceil_div(keys, kPair), 1));
  params.even = detail::EvenSchedule(params.ctas, params.batch, pairs, params.overhead, params.whole);
}

Result<void> LaunchPlan::prepare(const Params& ready, Stream stream) const {
  return ready.even.size > 0 ? Result<void>() : launch_schedule(ready, stream);
}

std::size_t LaunchPlan::workspace_bytes() const {
  Params mapped = params;
  return map_workspace(mapped, multiprocessors, nullptr);
}

Params LaunchPlan::params_in(Workspace workspace) const {
  Params mapped = params;
  const auto address = reinterpret_cast<std::uintptr_t>(workspace.data);
  map_workspace(mapped, multiprocessors, reinterpret_cast<std::byte*>(detail::round_up(address, kAlignment)));
  return mapped;
}

Result<void> LaunchPlan::run(const Params& ready, Stream stream, bool prepared) const {
  if (!prepared) {
    if (Result<void> good = prepare(ready, stream); !good) return good;
  }
  const Attend attend = call.dtype == DType::f16 ? attend_for<__half>(call) : attend_for<__nv_bfloat16>(call);
  if (Result<void> good = attend(ready, device.ordinal, stream); !good) return good;
  const bool split = !ready.whole && ready.ctas > 1 && (ready.even.size == 0 || ready.even.shares > 1);
  if (!split) return {};
  return (call.dtype == DType::f16 ? launch_combine<__half> : launch_combine<__nv_bfloat16>)(ready, 2 * multiprocessors, stream);
}

std::string LaunchPlan::explain() const {
  const char* decoded = tuning.kernel == Kernel::specialised ? "gathered keys, decoded by value warps" : "gathered keys, decoded";
  const char* keys = tuning.load == Load::tma ? "TMA boxes of 8 keys" : tuning.load == Load::gather ? "gathered keys" : decoded;
  return "64 x 64 tiles, " + std::to_string(params.ctas) + " splits of " + std::to_string(params.query_tiles * params.kv_heads) +
         " query tiles, clusters of " + std::to_string(tuning.cluster) + ", " + keys;
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
  rows.page = divmod_by(cache.page);
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

bool tma_reaches(const std::array<std::int64_t, 3>& strides, std::int64_t bytes) {
  return std::all_of(strides.begin(), strides.end(), [&](std::int64_t stride) { return stride < kBoxStrideLimit / bytes; });
}

Result<void> LaunchPlan::encode_heads_of(Params& filled, const detail::AttentionCore& core) const {
  const int slices = static_cast<int>(core.head_dim_qk / kSlice), in_shared = tuning.kernel == Kernel::specialised ? kHalfSlices : slices;
  const Result<bool> queries = encode_heads(filled.queries, *this, core, filled.q, core.q, {slices, kSlice, in_shared});
  if (!queries) return queries.error();
  filled.tma_queries = *queries;
  if (tuning.load != Load::gather) return {};
  const Result<bool> results = encode_heads(filled.results, *this, core, filled.out, core.out, {kValueDim / kSlice, kSlice, kHalfSlices});
  if (!results) return results.error();
  filled.tma_results = *results;
  return {};
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
  const std::int64_t pairs = detail::ceil_div(core.max_seq_k, kPair) + 1 + kSequenceOverhead;
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
  if (load != Load::tma && !places_fit(cache, unit)) {
    return declined(text + " (units of " + std::to_string(unit) + " bytes, which divide the strides of all blocks and tokens)",
                    "2^32 or more", "fewer: a block stride that is a multiple of more bytes, such as those of a token");
  }
  return {};
}

}  // namespace fovea::gpu::sm90::latent
