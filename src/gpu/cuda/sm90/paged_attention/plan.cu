// SPDX-License-Identifier: Apache-2.0
/// Paged attention by full query tiles: accepts or declines, and launches. A batch of prefills and decodes
/// may have two kernels, co-launched.
#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gpu/cuda/common/attention_plan.hpp"
#include "gpu/cuda/common/instances.hpp"
#include "gpu/cuda/sm90/dense/plan.hpp"
#include "gpu/cuda/sm90/dense/storage.cuh"
#include "gpu/cuda/sm90/implementations.hpp"
#include "gpu/cuda/sm90/paged_attention/columns/plan.hpp"
#include "gpu/cuda/sm90/paged_attention/config.hpp"
#include "gpu/cuda/sm90/paged_attention/masked/tuning.hpp"
#include "gpu/plan_state.hpp"
#include "gpu/tensor_map.hpp"
#include "op/common/attention_core.hpp"
#include "op/paged_attention/problem.hpp"
#include "plan/select.hpp"

namespace fovea::gpu::sm90 {
namespace paged_attention {
namespace {

using detail::declined;
using Problem = detail::PagedAttentionProblem;

constexpr std::string_view kName = "cuda.sm90.paged_attention", kMixedName = "cuda.sm90.paged_attention_mixed";

/// A cache is a tensor of rows whose sequences are pages.
std::array<RowsDesc, 4> tensors_of(const Problem& p) {
  const std::int64_t blocks = std::max<std::int64_t>(p.blocks, 1);
  return {{{"q", p.q_dtype, p.q, p.total_q, p.heads, 1, p.head_dim_qk, p.q_alignment},
           {"k_cache", p.kv_dtype, {p.k.block, p.k.token, p.k.head}, p.page, p.kv_heads, blocks, p.head_dim_qk, p.k_alignment},
           {"v_cache", p.kv_dtype, {p.v.block, p.v.token, p.v.head}, p.page, p.kv_heads, blocks, p.head_dim_v, p.v_alignment},
           {"out", p.out_dtype, p.out, p.total_q, p.heads, 1, p.head_dim_v, p.out_alignment}}};
}

/// Chooses by the average query rows. A batch-invariant call, and one of exact rows, takes the same kernel for any sequences.
/// Co-launched prefills count half of their bound: with few CTAs, taller tiles leave more of them idle (a
/// prefill of 2048 beside 31 decodes of 8192: 399 us for 397).
int kernel_for(const Problem& problem) {
  if (problem.packed_mask) return kernel_of_masked(kMasked128);
  const bool causal = problem.mask.right != kUnbounded;
  const std::int64_t average = problem.total_q / std::max<std::int64_t>(problem.batch, 1);
  const std::int64_t rows = problem.batch_invariant || problem.exact_rows         ? 0
                            : problem.sequences == detail::SequenceClass::prefill ? problem.max_seq_q / 2
                                                                                  : average;
  return kernel_of(problem.head_dim_qk, problem.head_dim_v, causal ? rows / 2 : rows);
}
const attention::Tuning& tuning_for(const Problem& problem) { return tuning_of(kernel_for(problem)); }

/// Heads that share a query tile: as many as possible, because a sequence may have any length. A box of
/// several heads needs a stride between them.
int packed_of(const Problem& problem) {
  return packed_heads(problem.group(), 1, tuning_for(problem).row_tile(), problem.q.head == 0 ? 1 : dense::kWarpgroupRows);
}

/// Upper bound of the work tiles, over all lengths.
std::int64_t work_tiles_of(const Problem& problem) {
  const int packed = packed_of(problem);
  const std::int64_t tokens = tuning_for(problem).row_tile() / packed;
  const std::int64_t tiles =
      std::min(problem.total_q / tokens + problem.batch, detail::ceil_div(problem.max_seq_q, tokens) * problem.batch);
  return tiles * (problem.heads / packed);
}

Result<void> accept(const Problem& problem) {
  if (problem.q_dtype != DType::bf16 && problem.q_dtype != DType::f16) return declined("q.dtype", name_of(problem.q_dtype), "bf16 or f16");
  if (problem.kv_dtype != problem.q_dtype) return declined("k_cache.dtype", name_of(problem.kv_dtype), name_of(problem.q_dtype));
  if (auto reason = detail::decline_head_dims(problem)) return *reason;
  if (problem.packed_mask && std::max(problem.head_dim_qk, problem.head_dim_v) > kMaskedHeadDim) {
    return declined("packed_mask", "a mask", "none at head dims past 128");
  }
  if (problem.packed_mask && problem.exact_rows) return declined("packed_mask", "a mask", "none with options.exact_rows");
  if (problem.page % kGroupRows != 0) return declined("k_cache.shape[1] (page)", problem.page, "a multiple of 8");
  if (problem.max_seq_k >= kCountLimit) return declined("max_kv_len", problem.max_seq_k, "below 2^30");
  if (Result<void> good = dense::accept_dense(problem, tensors_of(problem)); !good) return good;
  if (work_tiles_of(problem) >= kCountLimit) return declined("q.shape (work tiles)", work_tiles_of(problem), "below 2^30");
  return {};
}

using Launch = CudaStatus (*)(const Params&, int, int, Stream);

Launch launch_of(DType dtype, bool transform, int kernel) {
  return instance_of<kKernels.size()>(dtype, transform, kernel, [](auto of) -> Launch {
    return &launch_attend<Config<typename decltype(of)::Element, row_of(of.kRow), of.kWith>>;
  });
}

Launch launch_of_masked(DType dtype) {
  constexpr int kRow = row_of(kernel_of_masked(kMasked128));
  return dtype == DType::f16 ? &launch_attend<MaskedConfig<__half, kRow>> : &launch_attend<MaskedConfig<__nv_bfloat16, kRow>>;
}

/// A map whose boxes are all out of bounds, and filled with NaN.
Result<CUtensorMap> encode_nan_rows(const ClippedRows& rows, DType dtype) {
  TensorMapDesc desc{.dtype = dtype, .rank = 5};
  desc.dimensions = {{{8, 1, kSliceColumns}, {1, 8, 1}, {1, 8, kGroupRows}, {1, 8, 1}, {1, 8, 1}}};
  desc.l2_promotion = CU_TENSOR_MAP_L2_PROMOTION_NONE;
  desc.fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA;
  return encode_tensor_map(rows.data, desc);
}

class State final : public PlanState<Problem, PagedAttentionArgs> {
 public:
  State(const Problem& problem, Device device, const DeviceProperties& properties)
      : PlanState(kName, problem, device), kernel_(kernel_for(problem)) {
    ctas_ = static_cast<int>(std::min<std::int64_t>(work_tiles_of(problem), properties.multiprocessors));
    fill_problem(params_, problem);
    while (params_.packed() < packed_of(problem)) ++params_.packed_shift;
    params_.rows = problem.total_q;
    params_.lse_strides = problem.lse;
    // Above 0, so that minus infinity stays so.
    params_.scale_log2 = in_base_2(problem.scale, std::numeric_limits<float>::min());
    params_.table_stride = problem.table_stride;
    params_.page = divmod_by(problem.page);
    params_.blocks = static_cast<int>(problem.blocks);
    params_.box_rows = box_rows(problem.page, tuning_row().key_tile);
    if (problem.sequences == detail::SequenceClass::prefill) params_.prefill_from = static_cast<int>(problem.prefill_from);
    if (!problem.exact_rows) return;
    columns_ = columns::call_of(problem, kernel_, properties.multiprocessors);
    workspace_bytes = columns::workspace_bytes(problem, kernel_, properties.multiprocessors);
  }

  std::string tuning() const override {
    if (columns_) return tiles_text(tuning_row(), 1, 1) + columns_->tuning();
    const std::string boxes = ", keys in boxes of " + std::to_string(params_.box_rows);
    return tiles_text(tuning_row(), params_.packed(), 1) + boxes;
  }

 private:
  bool is_empty() const override { return problem_.batch == 0 || problem_.total_q == 0 || problem_.max_seq_q == 0; }

  Result<void> compute(const PagedAttentionArgs& args, Workspace workspace, Stream stream, bool) const override {
    Params params = params_;
    fill_arguments(params, args);
    if (columns_) return compute_by_columns(params, workspace, stream);
    if (Result<void> good = fill_maps(params); !good) return good;
    const Launch launch =
        problem_.packed_mask ? launch_of_masked(problem_.q_dtype) : launch_of(problem_.q_dtype, transforms_scores(problem_), kernel_);
    return launch(params, ctas_, device_.ordinal, stream);
  }

  Result<void> compute_by_columns(const Params& filled, Workspace workspace, Stream stream) const {
    columns::Params params{filled};
    params.transform = transforms_scores(problem_);
    params.kv_heads = static_cast<int>(problem_.kv_heads);
    columns::take(params, problem_, problem_.batch * problem_.kv_heads, tuning_row().key_tile, static_cast<std::byte*>(workspace.data));
    const auto launch = problem_.q_dtype == DType::f16 ? &columns::launch_columns<__half> : &columns::launch_columns<__nv_bfloat16>;
    return launch(params, columns_->kernel, columns_->groups, columns_->ctas_of_cell, device_.ordinal, stream);
  }

  const attention::Tuning& tuning_row() const { return tuning_of(kernel_); }

  /// Sets the fields that a run knows, but for tensor maps.
  void fill_arguments(Params& params, const PagedAttentionArgs& args) const {
    const std::array<RowsDesc, 4> tensors = tensors_of(problem_);
    const bool any_keys = problem_.blocks > 0;  // a tensor without rows has no memory
    const void *k = any_keys ? args.k_cache : args.q, *v = any_keys ? args.v_cache : args.q;
    dense::fill_rows(params, tensors, {args.q, k, v, args.out}, dense::kWarpgroupRows / params.packed(), kGroupRows);
    params.block_table = args.block_table;
    params.kv_len = args.kv_len;
    params.cu_seqlens_q = args.cu_seqlens_q;
    params.sink = problem_.has_sink ? args.sink : nullptr;
    params.lse = problem_.has_lse ? args.lse : nullptr;
    if (problem_.packed_mask) params.bits = {*problem_.packed_mask, args};
  }

  Result<void> fill_maps(Params& params) const {
    const std::array<RowsDesc, 4> tensors = tensors_of(problem_);
    const bool stores = attention::stages_results(tuning_row(), true);
    if (Result<void> good = dense::encode_maps(params, tensors, params.packed(), stores); !good) return good;
    if (Result<void> good = encode_pages(params.k_pages, tensors[1], params.k.data, tuning_row().head_dim_qk); !good) return good;
    if (Result<void> good = encode_pages(params.v_pages, tensors[2], params.v.data, tuning_row().head_dim_v); !good) return good;
    const Result<CUtensorMap> outside = encode_nan_rows(params.k, problem_.kv_dtype);
    if (!outside) return outside.error();
    params.outside = *outside;
    return {};
  }

  /// Makes the map of whole pages, if the kernel reads no column past the cache's. With a last slice that is
  /// not whole, a box also holds elements behind its rows, which lie in the cache but for the last block.
  Result<void> encode_pages(PageBoxes& pages, const RowsDesc& cache, const void* data, int head_dim) const {
    const std::int64_t head = cache.heads > 1 ? cache.strides.head : 0, slices = detail::ceil_div(head_dim, kSliceColumns);
    const std::int64_t beyond = slices * kSliceColumns - head_dim, last_head = (cache.heads - 1) * head;
    const bool whole = head % kSliceColumns == 0, follow = cache.strides.batch >= beyond && cache.strides.row >= beyond;
    const std::int64_t all_slices = (whole ? last_head / kSliceColumns : 0) + slices, columns = (whole ? 0 : last_head) + kSliceColumns;
    if (problem_.blocks == 0 || cache.columns != head_dim || std::max(all_slices, columns) >= kCountLimit || !follow) return {};
    (whole ? pages.slice_step : pages.column_step) = static_cast<int>(whole ? head / kSliceColumns : head);
    const std::int64_t block = cache.batch > 1 && cache.strides.batch > 0 ? cache.strides.batch : kSliceColumns;
    TensorMapDesc desc{.dtype = cache.dtype, .rank = 5};
    desc.dimensions = {{{columns, 1, kSliceColumns},
                        {kGroupRows, cache.strides.row, kGroupRows},
                        {all_slices, kSliceColumns, static_cast<int>(slices)},
                        {cache.rows / kGroupRows, kGroupRows * cache.strides.row, params_.box_rows / kGroupRows},
                        {cache.batch, block, 1}}};
    const Result<CUtensorMap> map = encode_tensor_map(data, desc);
    if (!map) return map.error();
    pages.map = *map;
    pages.blocks = static_cast<int>(beyond > 0 ? cache.batch - 1 : cache.batch);
    return {};
  }

  int kernel_;
  std::optional<columns::Call> columns_;  ///< in place of all that follows
  int ctas_ = 0;
  Params params_{};
};

detail::PlanResult<PagedAttentionArgs> plan(const Problem& problem, Device device) {
  if (auto reason = decline_device(device, kCapability, kCapability)) return *reason;
  if (Result<void> good = accept(problem); !good) return good.error();
  return std::shared_ptr<const detail::PlanState<PagedAttentionArgs>>(std::make_shared<State>(problem, device, *properties(device)));
}

std::string_view outdone(const Problem& problem, Device device) {
  if (problem.batch == 0 || problem.total_q == 0 || problem.exact_rows) return {};
  if (problem.batch_invariant) return "a batch-invariant call has one kernel for sequences of any length";
  return outdone_by_portable(problem.total_q * problem.group() / problem.batch, work_tiles_of(problem),
                             properties(device)->multiprocessors);
}

// ---- prefills and decodes by two kernels ----------------------------------------------------------

/// Plan of one kernel.
using Half = std::shared_ptr<const detail::PlanState<PagedAttentionArgs>>;

Bounds bounds_of(const Problem& p) { return {p.batch, p.total_q, p.max_seq_q, p.group()}; }

class MixedState final : public PlanState<Problem, PagedAttentionArgs> {
 public:
  MixedState(const Problem& problem, Device device, Half prefill, Half decode)
      : PlanState(kMixedName, problem, device), prefill_(std::move(prefill)), decode_(std::move(decode)) {
    workspace_bytes = decode_->workspace_bytes;
  }

  std::string tuning() const override {
    const auto text = [](const Half& half) { return std::string(half->implementation) + ": " + half->tuning(); };
    return "sequences of " + std::to_string(prefill_from(bounds_of(problem_))) + " query tokens or more by " + text(prefill_) +
           "; beside it the others by " + text(decode_);
  }

 private:
  bool is_empty() const override { return problem_.batch == 0 || problem_.total_q == 0; }

  /// The kernel of prefills lets the other one start beside it. The other one completes after both.
  Result<void> compute(const PagedAttentionArgs& args, Workspace workspace, Stream stream, bool) const override {
    if (Result<void> launched = prefill_->run(args, {}, stream, false); !launched) return launched;
    return decode_->run(args, workspace, stream, false);
  }

  Half prefill_, decode_;
};

/// Plans with the first entry for which `serves(entry)` is true.
template <class Pred>
detail::PlanResult<PagedAttentionArgs> plan_half(const Problem& problem, Device device, const Pred& serves) {
  const auto entries = detail::implementations_of<detail::PagedAttention>();
  const auto found = std::find_if(entries.begin(), entries.end(), serves);
  return detail::plan_with(*found, problem, device, true);
}

detail::PlanResult<PagedAttentionArgs> plan_mixed(const Problem& problem, Device device) {
  Problem half = problem;
  half.prefill_from = prefill_from(bounds_of(problem));
  half.sequences = detail::SequenceClass::prefill;
  auto prefill = plan_half(half, device, [](const auto& entry) { return entry.name == kName; });
  if (!prefill) return prefill.error();
  // Without a prefill, the decodes are not co-launched.
  half.sequences = problem.max_seq_q < half.prefill_from ? detail::SequenceClass::all : detail::SequenceClass::decode;
  half.max_seq_q = std::min(problem.max_seq_q, half.prefill_from - 1);
  auto decode = plan_half(half, device, [](const auto& entry) { return entry.serves.decode_sequences; });
  if (!decode) return decode.error();
  return std::shared_ptr<const detail::PlanState<PagedAttentionArgs>>(
      std::make_shared<MixedState>(problem, device, *std::move(prefill), *std::move(decode)));
}

std::string_view mixed_outdone(const Problem& problem, Device) {
  if (problem.batch == 0 || problem.total_q == 0) return "nothing is to be computed";
  return outdone_by_one(bounds_of(problem));
}

constexpr std::string_view kAccepts =
    "f16, bf16 caches; head dims that are multiples of 8 up to 256; pages that are multiples of 8; rows aligned to 16 bytes";

constexpr std::array kRows{
    detail::Implementation<detail::PagedAttention>{kMixedName, kAccepts, detail::handles<detail::PagedAttention>(kScoreOptions),
                                                   Backend::cuda, unavailable<kCapability, kCapability>, plan_mixed, mixed_outdone},
    detail::Implementation<detail::PagedAttention>{
        kName, kAccepts,
        detail::handles<detail::PagedAttention>(kScoreOptions, "packed_mask", "options.batch_invariant", "options.exact_rows"),
        Backend::cuda, unavailable<kCapability, kCapability>, plan, outdone}};

}  // namespace
}  // namespace paged_attention

detail::Implementations<detail::PagedAttention> implementations(detail::PagedAttention) { return paged_attention::kRows; }

}  // namespace fovea::gpu::sm90
