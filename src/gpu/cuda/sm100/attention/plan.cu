// SPDX-License-Identifier: Apache-2.0
/// Dense attention, forward: accepts or declines, and launches.
#include <array>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "gpu/cuda/common/attention_plan.hpp"
#include "gpu/cuda/common/instances.hpp"
#include "gpu/cuda/sm100/attention/config.hpp"
#include "gpu/cuda/sm100/implementations.hpp"
#include "gpu/cuda/sm90/dense/plan.hpp"
#include "gpu/plan_state.hpp"
#include "op/attention/problem.hpp"

namespace fovea::gpu::sm100::attention {
namespace {

using detail::declined;
using Problem = detail::AttentionProblem;

constexpr std::string_view kName = "cuda.sm100.attention";

using Launch = CudaStatus (*)(const Params&, int, int, Stream);

Launch launch_of(DType dtype, int tuning) {
  return instance_of<kTunings.size()>(dtype, tuning,
                                      [](auto of) -> Launch { return &launch_attend<Config<typename decltype(of)::Element, of.kRow>>; });
}

class State final : public PlanState<Problem, AttentionArgs> {
 public:
  State(const Problem& problem, Device device)
      : PlanState(kName, problem, device), index_(tuning_index(problem.head_dim_qk, problem.head_dim_v)) {
    const std::int64_t q_tiles = detail::ceil_div(problem.max_seq_q, Tuning::row_tile()), heads = problem.heads * problem.batch;
    work_tiles_ = q_tiles * heads;
    // Under a causal mask the longest first, among heads whose keys and values fit L2; else head by head.
    const std::int64_t section = sm90::dense::is_causal_alone(problem) ? sm90::dense::section_heads(problem, 1) : 1;
    if (work_tiles_ > 0 && work_tiles_ < sm90::kCountLimit) {
      params_.order = {static_cast<int>(q_tiles), static_cast<int>(heads), static_cast<int>(section)};
    }
    fill_problem(params_, problem);
    params_.out_strides = problem.out;
    params_.lse_strides = problem.lse;
    // Above 0, so that minus infinity stays so.
    params_.scale_log2 = in_base_2(problem.scale, std::numeric_limits<float>::min());
  }

  std::int64_t work_tiles() const { return work_tiles_; }
  std::string tuning() const override {
    return tiles_text(kTunings[static_cast<std::size_t>(index_)], 1, 1).append(", compiled and emulated, not run");
  }

 private:
  bool is_empty() const override { return problem_.batch == 0 || problem_.total_q == 0 || problem_.max_seq_q == 0; }

  Result<void> compute(const AttentionArgs& args, Workspace, Stream stream, bool) const override {
    Params params = params_;
    const std::array<sm90::RowsDesc, 4> tensors = sm90::dense::forward_tensors(problem_, problem_.out_dtype);
    const bool any_keys = tensors[1].rows > 0;  // a tensor without rows has no memory
    params.q = sm90::rows_of(tensors[0], args.q, kTileRows);
    params.k = sm90::rows_of(tensors[1], any_keys ? args.k : args.q, kTileRows);
    params.v = sm90::rows_of(tensors[2], any_keys ? args.v : args.q, kTileRows);
    if (Result<void> good = sm90::encode_rows(params.q, tensors[0]); !good) return good;
    if (Result<void> good = sm90::encode_rows(params.k, tensors[1]); !good) return good;
    if (Result<void> good = sm90::encode_rows(params.v, tensors[2]); !good) return good;
    params.out = args.out;
    params.lse = problem_.has_lse ? args.lse : nullptr;
    fill_lists(params, problem_, args);
    return launch_of(problem_.q_dtype, index_)(params, static_cast<int>(work_tiles_), device_.ordinal, stream);
  }

  int index_;  ///< row of tuning.hpp
  std::int64_t work_tiles_ = 0;
  Params params_{};
};

/// FOVEA_UNTESTED_BLACKWELL=1 lets a call have this kernel.
std::string_view asked_for() {
  static const char* const kSet = std::getenv("FOVEA_UNTESTED_BLACKWELL");
  return kSet == nullptr ? "" : kSet;
}

std::string_view unavailable_here() {
  const std::string_view reason = unavailable<kCapability, kCapability>();
  if (!reason.empty() || asked_for() == "1") return reason;
  return "needs FOVEA_UNTESTED_BLACKWELL=1: no device has run this kernel";
}

detail::PlanResult<AttentionArgs> plan(const Problem& problem, Device device) {
  if (auto reason = decline_device(device, kCapability, kCapability)) return *reason;
  if (asked_for() != "1")
    return declined("FOVEA_UNTESTED_BLACKWELL", asked_for().empty() ? "nothing" : asked_for(), "1: no device has run this kernel");
  if (problem.q_dtype != DType::bf16 && problem.q_dtype != DType::f16) return declined("q.dtype", name_of(problem.q_dtype), "bf16 or f16");
  if (tuning_index(problem.head_dim_qk, problem.head_dim_v) == static_cast<int>(kTunings.size())) {
    const std::string got = std::to_string(problem.head_dim_qk) + " and " + std::to_string(problem.head_dim_v);
    return declined("q.shape and v.shape (head_dim)", got, "at most 192 and 128");
  }
  if (auto reason = detail::decline_head_dims(problem)) return *reason;
  if (transforms_scores(problem)) return declined("scale", detail::number_text(problem.scale), "from 0 to 2^127");
  if (Result<void> good = sm90::dense::accept_dense(problem, sm90::dense::forward_tensors(problem, problem.out_dtype)); !good) {
    return good.error();
  }
  auto state = std::make_shared<State>(problem, device);
  if (state->work_tiles() >= sm90::kCountLimit) return declined("q.shape (work tiles)", state->work_tiles(), "below 2^30");
  return std::shared_ptr<const detail::PlanState<AttentionArgs>>(std::move(state));
}

constexpr detail::Implementation<detail::Attention> kRows[]{
    {kName, "f16, bf16; head dims up to 192/128; rows aligned to 16 bytes; compiled and emulated, not run: FOVEA_UNTESTED_BLACKWELL=1",
     detail::handles<detail::Attention>("mask.left", "mask.right", "mask.anchor (top_left)", "sink", "lse", "ragged",
                                        "options.batch_invariant"),
     Backend::cuda, unavailable_here, plan},
};

}  // namespace
}  // namespace fovea::gpu::sm100::attention

namespace fovea::gpu::sm100 {

detail::Implementations<detail::Attention> implementations(detail::Attention) { return attention::kRows; }

}  // namespace fovea::gpu::sm100
