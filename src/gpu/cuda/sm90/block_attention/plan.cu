// SPDX-License-Identifier: Apache-2.0
/// Dense attention under a block mask: accepts or declines, and launches.
#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <string>

#include "gpu/cuda/common/attention_plan.hpp"
#include "gpu/cuda/common/block_plan.hpp"
#include "gpu/cuda/common/instances.hpp"
#include "gpu/cuda/sm90/block_attention/config.hpp"
#include "gpu/cuda/sm90/block_attention/plan.hpp"
#include "gpu/cuda/sm90/dense/plan.hpp"
#include "gpu/cuda/sm90/dense/storage.cuh"
#include "gpu/cuda/sm90/implementations.hpp"
#include "gpu/plan_state.hpp"
#include "op/common/head_dims.hpp"

namespace fovea::gpu::sm90::block_attention {
namespace {

using detail::declined;
using Problem = detail::AttentionProblem;
auto launch_of(DType dtype, bool transform, int tuning) {
  return instance_of<kTunings.size()>(dtype, transform, tuning,
                                      [](auto of) { return &launch_listed<Config<typename decltype(of)::Element, of.kRow, of.kWith>>; });
}

class State final : public PlanState<Problem, AttentionArgs> {
 public:
  State(const Problem& problem, Device device, int multiprocessors)
      : PlanState(kName, problem, device), index_(tuning_index(problem.head_dim_qk, problem.head_dim_v)) {
    const int packed = heads_of_listed_tile(problem, tuning_row().row_tile());
    const std::int64_t tokens = tuning_row().row_tile() / packed;
    const std::int64_t heads = problem.heads / packed * problem.batch;
    work_tiles_ = detail::ceil_div(problem.max_seq_q, tokens) * heads;
    ctas_ = static_cast<int>(std::min<std::int64_t>(work_tiles_, multiprocessors));
    while (params_.packed() < packed) ++params_.packed_shift;
    params_.order = dense::tile_order(problem, tokens, heads, ctas_, false);
    fill_problem(params_, problem);
    params_.rows = problem.total_q;
    params_.lse_strides = problem.lse;
    // Above 0, so that minus infinity stays so.
    params_.scale_log2 = in_base_2(problem.scale, std::numeric_limits<float>::min());
    // Lists differ in length, so no static order is fair.
    draws_ = work_tiles_ > multiprocessors;
    if (!draws_) return;
    params_.tickets.section_keys = dense::section_keys(problem);
    params_.sections = dense::section_order(problem, tokens, packed);
    workspace_bytes = dense::ticket_bytes(0);
  }

  std::int64_t work_tiles() const { return work_tiles_; }
  std::string tuning() const override { return tiles_text(tuning_row(), params_.packed(), 1); }

 private:
  bool is_empty() const override { return problem_.batch == 0 || problem_.total_q == 0; }

  Result<void> compute(const AttentionArgs& args, Workspace workspace, Stream stream, bool) const override {
    Params params = params_;
    if (Result<void> good = fill(params, args); !good) return good;
    if (draws_) {
      params.tickets.drawn = static_cast<int*>(workspace.data);
      const dense::SequenceLengths lengths{nullptr, nullptr, params.batch, params.seq_q, params.seq_k};
      if (Result<void> good = dense::launch_prepare(params.tickets, lengths, stream); !good) return good;
    }
    return launch_of(problem_.q_dtype, transforms_scores(problem_), index_)(params, ctas_, device_.ordinal, stream);
  }

  const Tuning& tuning_row() const { return kTunings[static_cast<std::size_t>(index_)]; }

  /// Sets the fields that a run knows.
  Result<void> fill(Params& params, const AttentionArgs& args) const {
    const int packed = params.packed(), keys = tuning_row().key_tile;
    const std::array<RowsDesc, 4> tensors = dense::forward_tensors(problem_, problem_.out_dtype);
    dense::fill_rows(params, tensors, {args.q, args.k, args.v, args.out}, dense::kWarpgroupRows / packed, keys);
    const bool stores = attention::stages_results(tuning_row(), true);
    if (Result<void> good = dense::encode_maps(params, tensors, packed, stores); !good) return good;
    fill_lists(params, problem_, args);
    params.lse = problem_.has_lse ? args.lse : nullptr;
    params.lists = block_lists(problem_, args, keys);
    return {};
  }

  int index_ = 0;  ///< row of tuning.hpp
  int ctas_ = 0;
  std::int64_t work_tiles_ = 0;
  bool draws_ = false;  ///< CTAs draw tickets
  Params params_{};
};

}  // namespace

detail::PlanResult<AttentionArgs> plan(const Problem& problem, Device device) {
  if (auto reason = decline_device(device, kCapability, kCapability)) return *reason;
  if (!problem.has_block_mask()) return declined("block_mask", "none", "lists of key blocks (other entries compute all keys)");
  if (problem.q_dtype != DType::bf16 && problem.q_dtype != DType::f16) return declined("q.dtype", name_of(problem.q_dtype), "bf16 or f16");
  if (const std::int64_t most = std::max(problem.head_dim_qk, problem.head_dim_v); most > kTunings.back().head_dim_qk) {
    return declined("head_dim (of a block mask)", most, "at most 128");
  }
  const Tuning& tuning = kTunings[static_cast<std::size_t>(tuning_index(problem.head_dim_qk, problem.head_dim_v))];
  if (auto reason = decline_blocks(problem, tuning.row_tile(), tuning.key_tile)) return *reason;
  if (Result<void> good = dense::accept_dense(problem, dense::forward_tensors(problem, problem.out_dtype)); !good) return good.error();
  auto state = std::make_shared<State>(problem, device, properties(device)->multiprocessors);
  if (state->work_tiles() >= kCountLimit) return declined("q.shape (work tiles)", state->work_tiles(), "below 2^30");
  return std::shared_ptr<const detail::PlanState<AttentionArgs>>(std::move(state));
}

}  // namespace fovea::gpu::sm90::block_attention
