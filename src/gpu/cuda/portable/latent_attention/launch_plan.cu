// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <utility>

#include "gpu/cuda/common/attention_plan.hpp"
#include "gpu/cuda/common/instances.hpp"
#include "gpu/cuda/portable/latent_attention/launch_plan.hpp"
#include "gpu/cuda/portable/latent_attention/work.cuh"
#include "op/common/division.hpp"
#include "op/common/workspace_arena.hpp"

namespace fovea::gpu::portable::latent_attention {
namespace {

using detail::declined;
using paged_attention::kLimit;
using paged_attention::RowState;

constexpr std::int64_t kMostOfGrid = 65535;  // blocks, in any dimension but the first
constexpr std::int64_t kAlignment = 16;      // bytes, of rows that are copied whole
constexpr int kTilesOfPrefill = 4, kSplitsOfPrefill = 4;

/// Bytes of shared memory that a device has, and bytes of a coded row of the call.
struct Fit {
  int per_block, per_multiprocessor, coded_row;
};

template <class Config>
constexpr Entry kEntry{Config::kRowTile, Config::kKeys, &shape_of<Config>, &launch_attend<Config>};

/// The kernel that fits with the fewest rows that suffice, else with the most rows; of equal ones the last. Without a
/// fit: the first.
template <class Element, int kHeadDim>
Entry entry_of(std::int64_t rows, const Fit& fit) {
  Entry best{};
  for (std::size_t tuning = 0; tuning < kTunings.size(); ++tuning) {
    const Entry entry = *function_of_row<kTunings.size()>(static_cast<int>(tuning),
                                                          [](auto row) { return &kEntry<ConfigOf<Element, kHeadDim, row.value>>; });
    const bool fits = entry.shape(fit.per_block, fit.per_multiprocessor, fit.coded_row).stages > 0;
    if (tuning == 0 || (fits && (best.row_tile < rows || best.row_tile == entry.row_tile))) best = entry;
  }
  return best;
}

Entry entry_of(const detail::AttentionCore& core, std::int64_t tokens, const Fit& fit) {
  // With batch_invariant, the number of tokens does not choose the kernel.
  const std::int64_t rows = (core.batch_invariant ? 1 : tokens) * core.group();
  const bool rotary = core.head_dim_qk == 576;
  if (core.q_dtype == DType::f16) return rotary ? entry_of<__half, 576>(rows, fit) : entry_of<__half, 512>(rows, fit);
  return rotary ? entry_of<__nv_bfloat16, 576>(rows, fit) : entry_of<__nv_bfloat16, 512>(rows, fit);
}

std::size_t map_workspace(Params& params, int row_tile, std::byte* base) {
  detail::WorkspaceArena arena(base);
  const std::int64_t cells = std::int64_t{2} * params.splits * params.kv_heads * row_tile;
  params.partials.out = arena.take<float>(cells * kValueDim);
  params.partials.states = arena.take<RowState>(cells);
  params.partial_largest = arena.take<float>(cells);
  params.unfinished = arena.take<WorkTile>(std::int64_t{params.splits} * params.kv_heads);
  return arena.bytes();
}

}  // namespace

LaunchPlan::LaunchPlan(const detail::AttentionCore& core, Device device_, std::int64_t sequences, std::int64_t tokens, int coded_row)
    : device(device_) {
  const DeviceProperties& found = *properties(device);
  const Fit fit{found.shared_bytes_per_block, found.shared_bytes_per_multiprocessor, coded_row};
  entry = entry_of(core, tokens, fit);
  const Shape shape = entry.shape(fit.per_block, fit.per_multiprocessor, fit.coded_row);
  params.coded_row = coded_row;
  params.stages = shape.stages;
  params.whole = core.batch_invariant;
  // Masks make splits of equal length unequally long, which matters with many query tiles. Then there are more splits than run at once,
  // and the hardware balances them.
  params.queued = tokens * core.group() > entry.row_tile * kTilesOfPrefill;
  const std::int64_t at_once = std::int64_t{found.multiprocessors} * shape.ctas / std::max<std::int64_t>(core.kv_heads, 1);
  params.splits = static_cast<int>(std::max<std::int64_t>(at_once, 1) * (params.queued ? kSplitsOfPrefill : 1));
  params.splits_divmod = detail::FastDivmod(params.splits);
  row_tiles = static_cast<int>(std::min<std::int64_t>(sequences * detail::ceil_div(tokens * core.group(), entry.row_tile), kLimit));
  params.q_strides = core.q;
  params.out_strides = core.out;
  params.lse_strides = core.lse;
  params.group = divmod_by(core.group());
  params.batch = static_cast<int>(sequences);
  params.total_q = static_cast<int>(core.total_q);
  params.seq_q = static_cast<int>(tokens);
  params.seq_k = static_cast<int>(core.max_seq_k);
  params.kv_heads = static_cast<int>(core.kv_heads);
  params.q_aligned = core.q_alignment % 4 == 0;
  params.q_chunks = core.q_alignment % kAlignment == 0;
  params.out_aligned = core.out_alignment % 4 == 0;
  params.bf16 = core.q_dtype == DType::bf16;
  params.mask = detail::NarrowMask(core.mask);
  params.scale = static_cast<float>(core.scale);
}

std::size_t LaunchPlan::workspace_bytes() const {
  Params mapped = params;
  return has_partials() ? map_workspace(mapped, entry.row_tile, nullptr) : 0;
}

Params LaunchPlan::params_in(Workspace workspace) const {
  Params mapped = params;
  if (has_partials()) map_workspace(mapped, entry.row_tile, static_cast<std::byte*>(workspace.data));
  return mapped;
}

Result<void> LaunchPlan::run(const Params& filled, Stream stream) const {
  if (Result<void> good = entry.launch(filled, device.ordinal, stream); !good) return good;
  return has_partials() ? launch_combine(filled, entry.row_tile, row_tiles, stream) : Result<void>();
}

std::string LaunchPlan::explain() const {
  std::string text = std::to_string(entry.row_tile) + " x " + std::to_string(entry.key_tile) + " tiles, " + std::to_string(params.stages) +
                     " stages, keys in up to " + std::to_string(params.splits) + " splits for each kv head";
  if (params.coded_row > 0) text += ", decoded in shared memory";
  if (!params.main.aligned) text += ", cache by single elements";
  return text;
}

RowKind kind_of(const detail::LatentCacheView& cache, DType q_dtype) {
  switch (cache.format) {
    case CacheFormat::v32_fp8: return RowKind::v32;
    case CacheFormat::v4_fp8: return RowKind::v4;
    case CacheFormat::v41_fp8:
    case CacheFormat::v41_fp8_planar: return RowKind::v41;
    case CacheFormat::v41_fp4: return RowKind::fp4;
    case CacheFormat::rows: break;
  }
  return cache.dtype == q_dtype ? RowKind::plain : RowKind::e4m3;
}

/// The largest power of two, up to kAlignment, at multiples of which rows lie.
static std::int64_t row_alignment(const detail::LatentCacheView& cache) {
  std::int64_t bytes = std::gcd(kAlignment, cache.alignment);
  if (packed_format(cache.format) != nullptr) return cache.blocks <= 1 ? bytes : std::gcd(bytes, cache.block_stride);
  for (const std::int64_t stride : {cache.strides.block, cache.strides.token, cache.strides.head}) {
    bytes = std::gcd(bytes, stride * static_cast<std::int64_t>(size_of(cache.dtype)));
  }
  return bytes;
}

RowCache row_cache(const detail::LatentCacheView& cache, DType q_dtype) {
  RowCache rows{.page = divmod_by(cache.page), .blocks = static_cast<int>(cache.blocks), .aligned = row_alignment(cache) == kAlignment};
  const RowKind kind = kind_of(cache, q_dtype);
  if (const PackedFormat* format = packed_format(cache.format)) {
    rows.strides = {cache.block_stride, format->codes_at(1), 0};
    rows.scales_at = format->scales_at(0, cache.page);
    rows.scales_stride = format->scales_at(1, cache.page) - rows.scales_at;
    const int scales = kind == RowKind::v32 ? 0 : format->scale_bytes;  // v32 has them between codes and rope
    rows.format = {kind, (format->bytes() - scales) / 16, format->codes, scales / 4};
    return rows;
  }
  const auto bytes = static_cast<std::int64_t>(size_of(cache.dtype));
  rows.strides = {cache.strides.block * bytes, cache.strides.token * bytes, cache.strides.head * bytes};
  rows.format = {kind, static_cast<int>(cache.row * bytes / 16), kind == RowKind::e4m3 ? static_cast<int>(cache.row) : 0, 0};
  return rows;
}

/// Bound of the flattened tiles, as the scheduler counts them.
static std::int64_t flattened_bound(const detail::AttentionCore& core, const LaunchPlan& launch) {
  const std::int64_t row_tile = launch.entry.row_tile, sequences = launch.params.batch;
  const std::int64_t row_tiles = std::min(core.total_q * core.group() / row_tile + sequences,
                                          sequences * detail::ceil_div(launch.params.seq_q * core.group(), row_tile));
  return row_tiles * (core.max_seq_k / paged_attention::kTileKeys + 1);
}

Result<void> accept_core(const detail::AttentionCore& core, const LaunchPlan& launch) {
  if (core.q_dtype != DType::f16 && core.q_dtype != DType::bf16) return declined("q.dtype", name_of(core.q_dtype), "bf16 or f16");
  if (core.q_dtype == DType::bf16 && properties(launch.device)->capability < 80) {
    return declined("q.dtype", "bf16", "f16, on compute capability 7.5");
  }
  for (const auto& [name, count] :
       {std::pair{"q.shape (rows and heads)", core.total_q * core.heads}, {"batch", core.batch}, {"keys of a sequence", core.max_seq_k}}) {
    if (count >= kLimit) return declined(name, count, "below 2^30");
  }
  if (core.kv_heads > kMostOfGrid) return declined("kv_heads", core.kv_heads, std::to_string(kMostOfGrid) + " or fewer");
  if (const std::int64_t length = flattened_bound(core, launch); length >= kLimit) {
    return declined("query tiles times key tiles", length, "below 2^30");
  }
  if (launch.params.stages == 0) {
    return declined("the device's shared memory (bytes of a block)", properties(launch.device)->shared_bytes_per_block, "more");
  }
  return {};
}

Result<void> accept_cache(std::string_view name, const detail::LatentCacheView& cache, int coded_row) {
  const std::string text(name);
  if (cache.page >= kLimit || cache.blocks >= kLimit) return declined(text + " (blocks, page)", "2^30 or more", "less");
  const std::int64_t alignment = row_alignment(cache);
  if (coded_row > 0 && alignment < kAlignment) return declined(text + " (alignment of rows in bytes)", alignment, "a multiple of 16");
  return {};
}

}  // namespace fovea::gpu::portable::latent_attention
