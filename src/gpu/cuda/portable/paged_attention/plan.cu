// SPDX-License-Identifier: Apache-2.0
/// Paged attention: accepts or declines, and launches.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "gpu/cuda/common/attention_plan.hpp"
#include "gpu/cuda/common/instances.hpp"
#include "gpu/cuda/portable/implementations.hpp"
#include "gpu/cuda/portable/paged_attention/config.hpp"
#include "gpu/cuda/portable/paged_attention/decoded/tuning.hpp"
#include "gpu/cuda/portable/wide_attention/plan.hpp"
#include "gpu/plan_state.hpp"
#include "op/common/checks.hpp"
#include "op/common/division.hpp"
#include "op/common/head_dims.hpp"
#include "op/paged_attention/problem.hpp"

namespace fovea::gpu::portable {
namespace paged_attention {
namespace {

using detail::declined;
using Problem = detail::PagedAttentionProblem;

constexpr std::string_view kName = "cuda.portable.paged_attention";

/// A kernel of one cache type.
struct Entry {
  int head_dim, row_tile;
  Shape (*shape)(int, int, bool);
  CudaStatus (*launch)(const Params&, int, Stream);
  CudaStatus (*launch_masked)(const Params&, int, Stream);  // of kWideRows
};
/// Formats of codes have no kernels with a packed mask.
template <class Cache, int kHeadDim>
constexpr auto masked_launch() -> CudaStatus (*)(const Params&, int, Stream) {
  if constexpr (Config<Cache, kHeadDim, kWideRows>::kCoded)
    return nullptr;
  else
    return &launch_attend<MaskedConfig<Cache, kHeadDim>>;
}
template <class Cache, int kHeadDim, int kRowTile>
constexpr Entry kEntry{kHeadDim, kRowTile, &shape_of<Config<Cache, kHeadDim, kRowTile>>, &launch_attend<Config<Cache, kHeadDim, kRowTile>>,
                       masked_launch<Cache, kHeadDim>()};
/// The kernels of a row of tuning.hpp.
template <class Cache, int kHeadDim>
constexpr std::array kEntries{kEntry<Cache, kHeadDim, kNarrowRows>, kEntry<Cache, kHeadDim, kMiddleRows>,
                              kEntry<Cache, kHeadDim, kWideRows>};

/// The first kernel that takes this head dim and so many rows of a query tile.
template <class Cache, const auto& kTable = kTunings>
const Entry& entry_of(std::int64_t head_dim, std::int64_t rows) {
  int tuning = 0;
  while (kTable[static_cast<std::size_t>(tuning)].head_dim < head_dim) ++tuning;
  const auto* entries = function_of_row<kTable.size()>(tuning, [](auto row) { return &kEntries<Cache, kTable[row.value].head_dim>; });
  return *std::find_if(entries->begin(), entries->end(), [&](const Entry& entry) { return entry.row_tile >= rows; });
}

/// The same of the kernels that decode rows of any format.
template <class Element>
const Entry& decoded_entry_of(std::int64_t head_dim, std::int64_t rows) {
  return *function_of_row<kDecodedTunings.size()>(decoded_row(head_dim, rows), [](auto row) {
    return &kEntry<Decoded<Element>, kDecodedTunings[row.value].head_dim, kDecodedTunings[row.value].row_tile>;
  });
}

/// Whether rows are decoded as they are loaded.
bool decodes(const Problem& problem) { return problem.k_format != problem.v_format; }

const Entry& entry_of(const Problem& problem) {
  const std::int64_t head_dim = std::max(problem.head_dim_qk, problem.head_dim_v);
  // With batch_invariant, the number of rows does not choose the kernel. Packed masks have one kernel.
  const std::int64_t rows =
      problem.batch_invariant || problem.packed_mask ? kWideRows : std::min<std::int64_t>(problem.max_seq_q * problem.group(), kWideRows);
  if (decodes(problem)) {
    return problem.q_dtype == DType::f16 ? decoded_entry_of<__half>(head_dim, rows) : decoded_entry_of<__nv_bfloat16>(head_dim, rows);
  }
  switch (problem.k_format) {
    case KvFormat::int8_token: return entry_of<Int8Codes>(head_dim, rows);
    case KvFormat::e4m3_token: return entry_of<E4m3Codes>(head_dim, rows);
    case KvFormat::e5m2: return entry_of<E5m2Codes>(head_dim, rows);
    case KvFormat::int4_token: return entry_of<Int4Codes, kTuningsFrom128>(head_dim, rows);
    case KvFormat::nvfp4: return entry_of<Nvfp4Codes, kTuningsFrom128>(head_dim, rows);
    case KvFormat::mxfp4: return entry_of<Mxfp4Codes, kTuningsFrom128>(head_dim, rows);
    case KvFormat::mxfp8: return entry_of<Mxfp8Codes, kTuningsFrom128>(head_dim, rows);
    default: break;
  }
  return problem.kv_dtype == DType::e4m3  ? entry_of<__nv_fp8_e4m3>(head_dim, rows)
         : problem.kv_dtype == DType::f16 ? entry_of<__half>(head_dim, rows)
                                          : entry_of<__nv_bfloat16>(head_dim, rows);
}

/// Bound of the flattened tiles, as tile_scheduler.cuh counts them.
std::int64_t flattened_bound(const Problem& problem) {
  const std::int64_t row_tile = entry_of(problem).row_tile;
  const std::int64_t row_tiles = std::min(problem.total_q * problem.group() / row_tile + problem.batch,
                                          problem.batch * detail::ceil_div(problem.max_seq_q * problem.group(), row_tile));
  return row_tiles * (problem.max_seq_k / kTileKeys + 1);
}

Result<void> accept_formats(const Problem& problem, const DeviceProperties& device) {
  if (problem.k_format == KvFormat::rows && problem.v_format == KvFormat::rows) return {};
  if (problem.packed_mask) return declined("packed_mask", "a mask", "none with k_format");
  for (const std::int64_t head_dim : {problem.head_dim_qk, problem.head_dim_v}) {
    if (head_dim > detail::kMaxHeadDim) return declined("head_dim", head_dim, "at most 256, with k_format");
    if (const KvRowFormat* format = kv_row_format(problem.k_format); !decodes(problem) && format->code_bits() == 4 && head_dim % 16 != 0) {
      return declined("head_dim", head_dim, "a multiple of 16, with codes of 4 bits");
    }
  }
  if (!decodes(problem)) return {};
  for (const auto& [name, format] : {std::pair{"k_format", problem.k_format}, {"v_format", problem.v_format}}) {
    const KvRowFormat* row = kv_row_format(format);
    if (row == nullptr || row->scale != KvScale::block_ue8m0) continue;
    if (problem.q_dtype == DType::f16) return declined(name, row->name, "another with f16 queries");
    if (device.capability < 80) return declined(name, row->name, "another on compute capability 7.5");
  }
  return {};
}

Result<void> accept(const Problem& problem, const DeviceProperties& device) {
  if (problem.q_dtype != DType::f16 && problem.q_dtype != DType::bf16) return declined("q.dtype", name_of(problem.q_dtype), "bf16 or f16");
  if (Result<void> good = accept_formats(problem, device); !good) return good;
  if (problem.kv_dtype == DType::bf16 && device.capability < 80) {
    return declined("k_cache.dtype", "bf16", "f16 or e4m3, on compute capability 7.5");
  }
  if (decodes(problem) && problem.q_dtype == DType::bf16 && device.capability < 80) {
    return declined("q.dtype", "bf16", "f16 with two formats, on compute capability 7.5");
  }
  if (auto reason = detail::decline_widest_head_dims(problem)) return *reason;
  for (const auto& [name, count] : {std::pair{"q.shape (rows and heads)", problem.total_q * problem.heads},
                                    {"batch", problem.batch},
                                    {"k_cache.shape[1] (page)", problem.page},
                                    {"max_kv_len", problem.max_seq_k}}) {
    if (count >= kLimit) return declined(name, count, "below 2^30");
  }
  if (wide_attention::takes(problem)) {
    if (problem.packed_mask) return declined("packed_mask", "a mask", "none at head dims past 256");
    return {};
  }
  if (const std::int64_t length = flattened_bound(problem); length >= kLimit) {
    return declined("q and block_table (query tiles times key tiles)", length, "below 2^30");
  }
  if (entry_of(problem).shape(device.shared_bytes_per_block, device.shared_bytes_per_multiprocessor, true).stages == 0) {
    return declined("q.shape (head_dim_qk)", std::max(problem.head_dim_qk, problem.head_dim_v),
                    "at most 128, on a device with so little shared memory");
  }
  return {};
}

/// A number that memory does not hold by chance: 64 bits, begun by the clock, never repeated.
std::uint64_t number_of_call() {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;  // neighbours differ in all bits
  static std::atomic<std::uint64_t> last{kOdd * static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count())};
  const std::uint64_t number = last.fetch_add(kOdd, std::memory_order_relaxed) + kOdd;
  return number != 0 ? number : number_of_call();
}

class State final : public PlanState<Problem, PagedAttentionArgs> {
 public:
  State(const Problem& problem, Device device, const DeviceProperties& properties)
      : PlanState(kName, problem, device), entry_(entry_of(problem)) {
    params_.co_launched = problem.sequences == detail::SequenceClass::decode;
    // Reducing the splits of a single sequence costs more than a second CTA of a multiprocessor gains.
    const bool single = has_own_keys(entry_.row_tile) && problem.batch == 1 && !params_.co_launched;
    const Shape shape = entry_.shape(properties.shared_bytes_per_block, properties.shared_bytes_per_multiprocessor, single);
    params_.stages = shape.stages;
    params_.whole = problem.batch_invariant;
    // Masks make splits of equal length unequally long, which matters with many query tiles. Then there are more splits
    // than run at once, and the hardware balances them.
    const bool prefill = problem.max_seq_q * problem.group() > kWideRows;
    params_.queued = prefill || params_.co_launched;
    const std::int64_t at_once = std::int64_t{properties.multiprocessors} * shape.ctas / problem.kv_heads;
    const int turns = prefill ? kSplitsOfPrefill : params_.co_launched ? kSplitsCoLaunched : 1;
    params_.splits = static_cast<int>(std::max<std::int64_t>(at_once, 1) * turns);
    // Conversions bind caches of codes, not memory: fewer CTAs take longer. In long calls the ends of work tiles hardly count.
    const std::int64_t tiles = problem.batch * detail::ceil_div(problem.max_seq_k, kTileKeys);
    const bool elements = !decodes(problem) && problem.k_format == KvFormat::rows && problem.kv_dtype != DType::e4m3;
    const bool evens = !params_.queued && elements && tiles > 0 && tiles <= kMostEvenTiles * params_.splits;
    if (evens) params_.splits = even_splits(params_.splits, problem.batch);
    params_.splits_divmod = detail::FastDivmod(params_.splits);
    fill_shape();
    if (has_partials()) {
      workspace_bytes = static_cast<std::size_t>(cells()) * (problem.head_dim_v * sizeof(float) + sizeof(RowState)) +
                        static_cast<std::size_t>(flags()) * sizeof(std::uint64_t);
    }
  }

  std::string tuning() const override {
    std::string text = std::to_string(entry_.row_tile) + " x " + std::to_string(kTileKeys) + " tiles for head dims up to " +
                       std::to_string(entry_.head_dim) + ", " + std::to_string(params_.stages) + " stages, keys in up to " +
                       std::to_string(params_.splits) + " splits for each kv head";
    for (const auto& [name, cache] : {std::pair{"k_cache", &params_.k}, {"v_cache", &params_.v}}) {
      if (!cache->aligned) text.append(", ").append(name).append(" by single elements");
    }
    return text;
  }

 private:
  static constexpr int kSplitsOfPrefill = 4;
  /// A co-launched kernel has few CTAs at first, and more once those of the other one end. 31 sequences of 8192 with a
  /// prefill of 2048 take 402 us with 2, 437 with 1, 402 with 4; one sequence of 131072 242, 234, 255 (H100, 2026-11-25).
  static constexpr int kSplitsCoLaunched = 2;
  /// Key tiles of a split, by the bounds of a call: 64 sequences of 8192 have 249.
  static constexpr int kMostEvenTiles = 256;

  bool is_empty() const override { return problem_.total_q == 0 || problem_.batch == 0; }
  bool has_partials() const { return !params_.whole && params_.splits > 1; }
  /// Rows of partial results.
  std::int64_t cells() const { return std::int64_t{2} * params_.splits * params_.kv_heads * entry_.row_tile; }

  /// Partials::ready.
  std::int64_t flags() const { return std::int64_t{params_.splits} * params_.kv_heads; }

  Result<void> compute(const PagedAttentionArgs& args, Workspace workspace, Stream stream, bool) const override {
    const auto launch = problem_.packed_mask ? entry_.launch_masked : entry_.launch;
    return launch(filled(args, workspace), device_.ordinal, stream);
  }

  RowCodes codes(KvFormat of) const {
    const KvRowFormat* format = kv_row_format(of);
    if (format == nullptr) return {.elements = problem_.kv_dtype != DType::e4m3};
    return {.code = format->code, .scale = format->scale, .group = format->group};
  }

  Cache cache(KvFormat of, const detail::CacheStrides& strides, std::int64_t head_dim, std::int32_t alignment,
              const std::optional<ScaleDesc>& scale, const std::optional<TensorDesc>& scale_cache) const {
    const KvRowFormat* format = kv_row_format(of);
    const auto size = static_cast<std::int64_t>(format != nullptr ? 1 : size_of(problem_.kv_dtype));
    Cache cache{.strides = {strides.block * size, strides.token * size, strides.head * size},
                .row_bytes = static_cast<int>(format != nullptr ? format->code_bytes(head_dim) : head_dim * size),
                .aligned = alignment % 16 == 0,
                .in_words = alignment % 4 == 0,
                .scale_stride = scale ? scale->head_stride : 0};
    if (scale_cache) {
      const auto scale_size = static_cast<std::int64_t>(size_of(scale_cache->dtype));
      const detail::CacheStrides apart = detail::cache_strides(*scale_cache);
      cache.scale_strides = {apart.block * scale_size, apart.token * scale_size, apart.head * scale_size};
      cache.scale_bytes = static_cast<int>(format->scales(head_dim) * scale_size);
      cache.scale_words = cache.scale_bytes % 4 == 0 && (scale_size == 4 || detail::row_alignment(*scale_cache) % 4 == 0);
    }
    return cache;
  }

  void fill_shape() {
    const Problem& p = problem_;
    params_.q_strides = p.q;
    params_.out_strides = p.out;
    params_.lse_strides = p.lse;
    params_.k = cache(p.k_format, p.k, p.head_dim_qk, p.k_alignment, p.k_scale, p.k_scale_cache);
    params_.v = cache(p.v_format, p.v, p.head_dim_v, p.v_alignment, p.v_scale, p.v_scale_cache);
    if (decodes(p)) {
      params_.k_codes = codes(p.k_format);
      params_.v_codes = codes(p.v_format);
    }
    params_.table_stride = p.table_stride;
    params_.page = divmod_by(p.page);
    params_.group = divmod_by(p.group());
    params_.blocks = static_cast<int>(p.blocks);
    params_.batch = static_cast<int>(p.batch);
    params_.total_q = static_cast<int>(p.total_q);
    params_.seq_q = static_cast<int>(p.max_seq_q);
    params_.seq_k = static_cast<int>(p.max_seq_k);
    params_.kv_heads = static_cast<int>(p.kv_heads);
    params_.head_dim_qk = static_cast<int>(p.head_dim_qk);
    params_.head_dim_v = static_cast<int>(p.head_dim_v);
    params_.q_aligned = p.q_alignment % 16 == 0;
    params_.out_aligned = p.out_alignment % 8 == 0;
    params_.bf16 = p.q_dtype == DType::bf16;
    params_.mask = detail::NarrowMask(p.mask);
    params_.scale = static_cast<float>(p.scale);
    params_.softcap = static_cast<float>(p.softcap);
    if (p.softcap != 0) params_.inv_softcap = in_base_2(2 * p.scale / p.softcap);
  }

  /// Adds the arguments of a run.
  Params filled(const PagedAttentionArgs& args, Workspace workspace) const {
    Params params = params_;
    params.q = args.q;
    params.out = args.out;
    params.k.data = static_cast<const std::byte*>(args.k_cache);
    params.v.data = static_cast<const std::byte*>(args.v_cache);
    params.k.scales = static_cast<const std::byte*>(args.k_scale_cache);
    params.v.scales = static_cast<const std::byte*>(args.v_scale_cache);
    params.k.scale = problem_.k_scale ? args.k_scale : nullptr;
    params.v.scale = problem_.v_scale ? args.v_scale : nullptr;
    params.block_table = args.block_table;
    params.cu_seqlens_q = args.cu_seqlens_q;
    params.kv_len = args.kv_len;
    params.sink = problem_.has_sink ? args.sink : nullptr;
    params.lse = problem_.has_lse ? args.lse : nullptr;
    if (problem_.packed_mask) params.bits = {*problem_.packed_mask, args};
    if (has_partials()) {
      params.partials.out = static_cast<float*>(workspace.data);
      params.partials.states = reinterpret_cast<RowState*>(params.partials.out + cells() * problem_.head_dim_v);
      params.partials.ready = reinterpret_cast<std::uint64_t*>(params.partials.states + cells());
      params.partials.call = number_of_call();
    }
    return params;
  }

  const Entry& entry_;
  Params params_{};
};

detail::PlanResult<PagedAttentionArgs> plan(const Problem& problem, Device device) {
  if (auto reason = decline_device(device, kLowestCapability, kAnyLater)) return *reason;
  const DeviceProperties& found = *properties(device);
  if (Result<void> good = accept(problem, found); !good) return good.error();
  if (wide_attention::takes(problem)) return wide_attention::plan(problem, device, kName);
  return std::shared_ptr<const detail::PlanState<PagedAttentionArgs>>(std::make_shared<State>(problem, device, found));
}

constexpr detail::Implementation<detail::PagedAttention> kRow{
    kName,
    "f16, bf16 (from compute capability 8.0 on), e4m3 caches, every format and two of them; head dims that are "
    "multiples of 8 up to 512 (7.5: 128; e4m3, formats: 256); any page",
    detail::handles<detail::PagedAttention>(kScoreOptions, "k_scale", "v_scale", "k_format", "v_format", "k_scale_cache", "v_scale_cache",
                                            "packed_mask", "options.batch_invariant"),
    Backend::cuda,
    unavailable<kLowestCapability, kAnyLater>,
    plan,
    nullptr,
    {.decode_sequences = true}};

}  // namespace
}  // namespace paged_attention

detail::Implementations<detail::PagedAttention> implementations(detail::PagedAttention) { return {&paged_attention::kRow, 1}; }

}  // namespace fovea::gpu::portable
