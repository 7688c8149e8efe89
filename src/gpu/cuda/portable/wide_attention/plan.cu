// SPDX-License-Identifier: Apache-2.0
/// Dense and paged attention of wide heads: accepts or declines, and launches.
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "gpu/cuda/common/attention_plan.hpp"
#include "gpu/cuda/common/instances.hpp"
#include "gpu/cuda/portable/wide_attention/combine.cuh"
#include "gpu/cuda/portable/wide_attention/config.hpp"
#include "gpu/cuda/portable/wide_attention/plan.hpp"
#include "gpu/plan_state.hpp"

namespace fovea::gpu::portable::wide_attention {
namespace {

using detail::declined;

constexpr std::int64_t kLimit = 1 << 30;  // work tiles are counted in ints
constexpr int kLeastSplitKeys = 256;

using Launch = CudaStatus (*)(const Params&, int, int, Stream);

template <bool kPaged>
Launch launch_of(DType dtype, int tuning) {
  return instance_of<kTunings.size()>(
      dtype, tuning, [](auto of) -> Launch { return &launch_attend<Config<typename decltype(of)::Element, of.kRow, kPaged>>; });
}

/// With batch_invariant, the number of rows does not choose the tile.
int tuning_of(const detail::AttentionCore& problem, const DeviceProperties& device) {
  const std::int64_t rows = problem.batch_invariant ? kFewRows + 1 : problem.max_seq_q * problem.group();
  return tuning_index(rows, device.shared_bytes_per_block);
}

template <class Problem, class Args>
class State final : public PlanState<Problem, Args> {
 public:
  State(const Problem& problem, Device device, std::string_view name, const DeviceProperties& properties)
      : PlanState<Problem, Args>(name, problem, device), index_(tuning_of(problem, properties)) {
    const Tuning& row = kTunings[static_cast<std::size_t>(index_)];
    const int packed = packed_heads(problem.group(), problem.max_seq_q, row.row_tile(), row.row_tile());
    while (1 << params_.packed_shift < packed) ++params_.packed_shift;
    const std::int64_t tokens = row.row_tile() / packed, q_tiles = detail::ceil_div(problem.max_seq_q, tokens);
    // Every sequence of a ragged batch may end inside of a tile.
    const std::int64_t all_tiles = std::min(problem.batch * q_tiles, problem.total_q / tokens + problem.batch);
    params_.q_tiles = static_cast<int>(std::min<std::int64_t>(ragged() ? all_tiles : q_tiles, kLimit));
    work_tiles_ = (ragged() ? all_tiles : q_tiles * problem.batch) * (problem.heads / packed);
    const int slots = properties.multiprocessors * resident_ctas(row, properties.shared_bytes_per_block);
    const std::int64_t most = most_keys(problem, tokens) / kLeastSplitKeys;
    const std::int64_t splits =
        is_whole() || work_tiles_ == 0 ? 1 : std::clamp<std::int64_t>(std::min(slots / work_tiles_, most), 1, kMostSplits);
    params_.splits = splits_for(problem, static_cast<int>(splits));
    if (ragged()) params_.splits.seq_q = static_cast<int>(problem.total_q);  // rows are counted over the whole batch
    work_tiles_ *= params_.splits.count;
    fill_shape();
    this->workspace_bytes = params_.splits.bytes();
  }

  std::int64_t work_tiles() const { return work_tiles_; }

  std::string tuning() const override {
    return tiles_text(kTunings[static_cast<std::size_t>(index_)], 1 << params_.packed_shift, params_.splits.count);
  }

 private:
  static constexpr bool kPaged = std::is_same_v<Problem, detail::PagedAttentionProblem>;
  using PlanState<Problem, Args>::problem_;
  using PlanState<Problem, Args>::device_;

  bool ragged() const {
    if constexpr (kPaged)
      return true;
    else
      return problem_.ragged;
  }
  /// Dense ragged batches are not split: their workspace would shrink where bounds grow.
  bool is_whole() const { return problem_.batch_invariant || (ragged() && !kPaged); }
  bool is_empty() const override { return problem_.total_q == 0 || work_tiles_ == 0; }

  Result<void> compute(const Args& args, Workspace workspace, Stream stream, bool) const override {
    const Params params = filled(args, workspace);
    const DType dtype = problem_.q_dtype;
    const Launch launch = launch_of<kPaged>(dtype, index_);
    Result<void> done = launch(params, static_cast<int>(work_tiles_), device_.ordinal, stream);
    if (!done || params.splits.count == 1) return done;
    return launch_combine(params.splits, params.cu_seqlens_q, params.batch, dtype, stream);
  }

  void fill_shape() {
    const auto aligned = [](std::int32_t alignment) { return alignment % 16 == 0; };
    params_.q = {nullptr, problem_.q, aligned(problem_.q_alignment)};
    params_.k = {nullptr, strides(problem_.k), aligned(problem_.k_alignment)};
    params_.v = {nullptr, strides(problem_.v), aligned(problem_.v_alignment)};
    params_.out = {nullptr, problem_.out, aligned(problem_.out_alignment)};
    fill_problem(params_, problem_);
    params_.lse_strides = problem_.lse;
    params_.transform = transforms_scores(problem_);
    // Above 0, so that minus infinity stays so.
    params_.scale_log2 = in_base_2(problem_.scale, std::numeric_limits<float>::min());
    if constexpr (kPaged) {
      params_.table_stride = problem_.table_stride;
      params_.page = divmod_by(problem_.page);
      params_.blocks = static_cast<int>(problem_.blocks);
    }
  }
  static detail::RowStrides strides(const detail::RowStrides& dense) { return dense; }
  static detail::RowStrides strides(const detail::CacheStrides& cache) {
    return {.batch = cache.block, .row = cache.token, .head = cache.head};
  }

  /// Adds the arguments of a run.
  Params filled(const Args& args, Workspace workspace) const {
    Params params = params_;
    params.q.data = args.q;
    params.out.data = args.out;
    if constexpr (kPaged) {
      params.k.data = args.k_cache;
      params.v.data = args.v_cache;
      params.block_table = args.block_table;
      params.cu_seqlens_q = args.cu_seqlens_q;
      params.kv_len = args.kv_len;
      params.sink = problem_.has_sink ? args.sink : nullptr;
    } else {
      params.k.data = args.k;
      params.v.data = args.v;
      fill_lists(params, problem_, args);
    }
    params.lse = problem_.has_lse ? args.lse : nullptr;
    fill_splits(params.splits, problem_, args, workspace.data);
    return params;
  }

  int index_ = 0;
  std::int64_t work_tiles_ = 0;
  Params params_{};
};

template <class Args, class Problem>
detail::PlanResult<Args> plan_state(const Problem& problem, Device device, std::string_view name) {
  const DeviceProperties& found = *properties(device);
  if (problem.kv_dtype == DType::e4m3) return declined("k_cache.dtype", "e4m3", "bf16 or f16, with head dims beyond 256");
  if (found.capability < 80 || tuning_of(problem, found) == static_cast<int>(kTunings.size())) {
    return declined("q.shape (head_dim)", std::max(problem.head_dim_qk, problem.head_dim_v),
                    "at most 256, on a device with so little shared memory");
  }
  auto state = std::make_shared<State<Problem, Args>>(problem, device, name, found);
  if (state->work_tiles() >= kLimit) return declined("q.shape (work tiles)", state->work_tiles(), "below 2^30");
  return std::shared_ptr<const detail::PlanState<Args>>(std::move(state));
}

}  // namespace

detail::PlanResult<AttentionArgs> plan(const detail::AttentionProblem& problem, Device device, std::string_view name) {
  return plan_state<AttentionArgs>(problem, device, name);
}
detail::PlanResult<PagedAttentionArgs> plan(const detail::PagedAttentionProblem& problem, Device device, std::string_view name) {
  return plan_state<PagedAttentionArgs>(problem, device, name);
}

}  // namespace fovea::gpu::portable::wide_attention
