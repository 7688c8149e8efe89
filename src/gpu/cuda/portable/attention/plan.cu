// SPDX-License-Identifier: Apache-2.0
/// Dense attention, forward: accepts or declines, and launches.
#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "gpu/cuda/common/attention_plan.hpp"
#include "gpu/cuda/common/block_plan.hpp"
#include "gpu/cuda/common/combine_splits.cuh"
#include "gpu/cuda/common/instances.hpp"
#include "gpu/cuda/portable/attention/config.hpp"
#include "gpu/cuda/portable/attention/masked/tuning.hpp"
#include "gpu/cuda/portable/block_attention/config.hpp"
#include "gpu/cuda/portable/implementations.hpp"
#include "gpu/cuda/portable/wide_attention/plan.hpp"
#include "gpu/plan_state.hpp"
#include "op/attention/problem.hpp"
#include "op/common/head_dims.hpp"

namespace fovea::gpu::portable {
namespace attention {
namespace {

using detail::declined;
using Problem = detail::AttentionProblem;

constexpr std::string_view kName = "cuda.portable.attention";

Result<void> accept(const Problem& problem, const DeviceProperties& device) {
  const bool multiplies_bf16 = device.capability >= 80;
  if (problem.q_dtype != DType::f16 && (problem.q_dtype != DType::bf16 || !multiplies_bf16)) {
    return declined("q.dtype", name_of(problem.q_dtype), multiplies_bf16 ? "bf16 or f16" : "f16, on compute capability 7.5");
  }
  if (auto reason = detail::decline_widest_head_dims(problem)) return *reason;
  for (const auto& [name, count] : {std::pair{"q.shape (rows)", problem.total_q},
                                    {"k.shape (rows)", problem.max_seq_k},
                                    {"q.shape (head)", problem.heads},
                                    {"batch", problem.batch}}) {
    if (count >= kLimit) return declined(name, count, "below 2^30");
  }
  return {};
}

using Launch = CudaStatus (*)(const Params&, int, int, Stream);

Launch launch_of(DType dtype, int tuning) {
  return instance_of<kTunings.size()>(dtype, tuning,
                                      [](auto of) -> Launch { return &launch_attend<Config<typename decltype(of)::Element, of.kRow>>; });
}

Launch listed_launch_of(DType dtype, int tuning) {
  return instance_of<block_attention::kTunings.size()>(
      dtype, tuning, [](auto of) -> Launch { return &launch_attend<block_attention::Config<typename decltype(of)::Element, of.kRow>>; });
}

/// The tiles of a problem: of those for block masks the first that takes the head dims, which both are in the table.
int listed_index(const Problem& problem) {
  return std::max(problem.head_dim_qk, problem.head_dim_v) > block_attention::kTunings[0].head_dim_qk;
}

Launch launch_of_masked(DType dtype, int index) {
  return instance_of<kMaskedTunings.size()>(
      dtype, index, [](auto of) -> Launch { return &launch_attend<MaskedConfig<typename decltype(of)::Element, row_of_masked(of.kRow)>>; });
}

Launch launch_of_biased(DType dtype, int tuning) {
  return instance_of<kBiasedTunings.size()>(
      dtype, tuning, [](auto of) -> Launch { return &launch_attend<BiasedConfig<typename decltype(of)::Element, of.kRow>>; });
}

class State final : public PlanState<Problem, AttentionArgs> {
 public:
  State(const Problem& problem, Device device, const DeviceProperties& properties) : PlanState(kName, problem, device) {
    const bool listed = problem.has_block_mask();
    const std::int64_t dqk = problem.head_dim_qk, dv = problem.head_dim_v;
    const int shared_bytes = properties.shared_bytes_per_block;
    if (listed) {
      tuning_ = listed_index(problem);
    } else if (problem.packed_mask) {
      masked_ = masked_index(dqk, dv, shared_bytes);
      tuning_ = row_of_masked(masked_);
    } else {
      tuning_ = problem.has_score_terms() ? biased_index(dqk, dv, shared_bytes, problem.has_bias, problem.dropout_p > 0)
                                          : tuning_index(dqk, dv, shared_bytes);
    }
    const Tuning& tuning = tuning_row();
    const int packed = listed ? heads_of_listed_tile(problem, tuning.row_tile())
                              : packed_heads(problem.group(), problem.max_seq_q, tuning.row_tile(), tuning.row_tile());
    while (1 << params_.packed_shift < packed) ++params_.packed_shift;
    const std::int64_t tokens = tuning.row_tile() / packed, heads = problem.heads / packed;
    const std::int64_t q_tiles = detail::ceil_div(problem.max_seq_q, tokens);
    // Ragged batches are not split: their workspace would shrink where bounds grow.
    const int slots = properties.multiprocessors * resident_ctas(tuning, properties.shared_bytes_per_block);
    const bool whole = problem.batch_invariant || problem.ragged;
    const std::int64_t most = most_keys(problem, tokens) / kLeastSplitKeys;
    params_.splits = splits_for(problem, whole ? 1 : splits_of(q_tiles * heads * problem.batch, most, slots));
    // Every sequence of a ragged batch may end inside of a tile.
    const std::int64_t all_tiles = std::min(problem.batch * q_tiles, problem.total_q / tokens + problem.batch);
    params_.q_tiles = static_cast<int>(std::min<std::int64_t>(problem.ragged ? all_tiles : q_tiles, kLimit));
    work_tiles_ = (problem.ragged ? all_tiles : q_tiles * problem.batch) * heads * params_.splits.count;
    fill_shape();
    workspace_bytes = params_.splits.bytes();
  }

  std::int64_t work_tiles() const { return work_tiles_; }

  std::string tuning() const override {
    std::string text = tiles_text(tuning_row(), 1 << params_.packed_shift, params_.splits.count);
    const std::string slow = unaligned();
    if (!slow.empty()) text.append(", by single elements:").append(slow);
    return text;
  }

 private:
  static constexpr int kLeastSplitKeys = 256;

  const Tuning& tuning_row() const {
    const auto row = static_cast<std::size_t>(tuning_);
    if (problem_.has_block_mask()) return block_attention::kTunings[row];
    if (problem_.has_score_terms()) return kBiasedTunings[row];
    return kTunings[row];
  }

  bool is_empty() const override { return problem_.total_q == 0 || work_tiles_ == 0; }

  Result<void> compute(const AttentionArgs& args, Workspace workspace, Stream stream, bool) const override {
    const Params params = filled(args, workspace);
    const DType dtype = problem_.q_dtype;
    Result<void> done = launch()(params, static_cast<int>(work_tiles_), device_.ordinal, stream);
    return done && params.splits.count > 1 ? launch_combine<false>(params.splits, dtype, stream) : done;
  }

  Launch launch() const {
    if (problem_.has_block_mask()) return listed_launch_of(problem_.q_dtype, tuning_);
    if (problem_.packed_mask) return launch_of_masked(problem_.q_dtype, masked_);
    if (problem_.has_score_terms()) return launch_of_biased(problem_.q_dtype, tuning_);
    return launch_of(problem_.q_dtype, tuning_);
  }

  /// The tensors whose rows are not aligned to 16 bytes.
  std::string unaligned() const {
    std::string names;
    for (const auto& [name, alignment] : {std::pair{"q", problem_.q_alignment},
                                          {"k", problem_.k_alignment},
                                          {"v", problem_.v_alignment},
                                          {"out", problem_.out_alignment}}) {
      if (alignment % 16 != 0) names.append(" ").append(name);
    }
    return names;
  }

  void fill_shape() {
    const auto aligned = [](std::int32_t alignment) { return alignment % 16 == 0; };
    params_.q = {nullptr, problem_.q, aligned(problem_.q_alignment)};
    params_.k = {nullptr, problem_.k, aligned(problem_.k_alignment)};
    params_.v = {nullptr, problem_.v, aligned(problem_.v_alignment)};
    params_.out = {nullptr, problem_.out, aligned(problem_.out_alignment)};
    fill_problem(params_, problem_);
    params_.numbers = work_numbers(params_);
    params_.lse_strides = problem_.lse;
    params_.transform = transforms_scores(problem_) || problem_.has_score_bias();
    // Above 0, so that minus infinity stays so.
    params_.scale_log2 = in_base_2(problem_.scale, std::numeric_limits<float>::min());
  }

  /// Adds the arguments of a run.
  Params filled(const AttentionArgs& args, Workspace workspace) const {
    Params params = params_;
    params.q.data = args.q;
    params.k.data = args.k;
    params.v.data = args.v;
    params.out.data = args.out;
    fill_lists(params, problem_, args);
    params.lse = problem_.has_lse ? args.lse : nullptr;
    fill_splits(params.splits, problem_, args, workspace.data);
    if (problem_.has_block_mask()) params.lists = block_lists(problem_, args, tuning_row().key_tile);
    if (problem_.packed_mask) params.bits = {*problem_.packed_mask, args};
    if (problem_.has_score_terms()) params.bias = {problem_, args};
    return params;
  }

  int tuning_ = 0, masked_ = 0;
  std::int64_t work_tiles_ = 0;
  Params params_{};
};

detail::PlanResult<AttentionArgs> plan(const Problem& problem, Device device) {
  if (auto reason = decline_device(device, kLowestCapability, kAnyLater)) return *reason;
  const DeviceProperties& found = *properties(device);
  if (Result<void> good = accept(problem, found); !good) return good.error();
  if (problem.has_block_mask()) {
    if (problem.packed_mask) return declined("packed_mask", "a mask", "none beside a block mask");
    const Tuning& widest = block_attention::kTunings.back();
    if (const std::int64_t most = std::max(problem.head_dim_qk, problem.head_dim_v); most > widest.head_dim_qk) {
      return declined("head_dim (of a block mask)", most, "at most 128");
    }
    if (auto reason = decline_blocks(problem, widest.row_tile(), widest.key_tile)) return *reason;
  }
  if (problem.has_score_terms() && (problem.packed_mask || problem.has_block_mask())) {
    return declined("alibi_slopes, bias or dropout_p", "a value", "none beside a packed or block mask");
  }
  if (wide_attention::takes(problem)) {
    if (problem.has_score_terms()) return declined("alibi_slopes, bias or dropout_p", "a value", "none at head dims past 256");
    if (problem.packed_mask) return declined("packed_mask", "a mask", "none at head dims past 256");
    return wide_attention::plan(problem, device, kName);
  }
  auto state = std::make_shared<State>(problem, device, found);
  if (state->work_tiles() >= kLimit) return declined("q.shape (work tiles)", state->work_tiles(), "below 2^30");
  return std::shared_ptr<const detail::PlanState<AttentionArgs>>(std::move(state));
}

constexpr detail::Implementation<detail::Attention> kRow{
    kName,
    "f16, bf16 (from compute capability 8.0 on); head dims that are multiples of 8 up to 512 (7.5: 256); any strides",
    detail::handles<detail::Attention>(kScoreOptions, "ragged", "full_block_indices", "partial_block_indices", "packed_mask",
                                       "alibi_slopes", "bias", "dropout_p", "options.batch_invariant"),
    Backend::cuda,
    unavailable<kLowestCapability, kAnyLater>,
    plan};

}  // namespace
}  // namespace attention

detail::Implementations<detail::Attention> implementations(detail::Attention) { return {&attention::kRow, 1}; }

}  // namespace fovea::gpu::portable
