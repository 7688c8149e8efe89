// SPDX-License-Identifier: Apache-2.0
/// Quantises into the workspace and attends, by the kernels of these steps.
#include <algorithm>
#include <memory>
#include <string>

#include "gpu/cuda/portable/implementations.hpp"
#include "gpu/cuda/portable/quantizers/steps.hpp"
#include "gpu/plan_state.hpp"
#include "op/quantized_attention/between.hpp"
#include "op/quantized_attention/validate.hpp"

namespace fovea::gpu::portable {
namespace {

using Problem = detail::QuantizeAndAttendProblem;
using AttentionPlan = std::shared_ptr<const detail::PlanState<QuantizedAttentionArgs>>;

constexpr std::string_view kName = "cuda.portable.quantize_and_attend";

class State final : public PlanState<Problem, QuantizeAndAttendArgs> {
 public:
  State(const Problem& problem, Device device, AttentionPlan attention)
      : PlanState(kName, problem, device), attention_(std::move(attention)) {
    rest_ = std::max(quantizers::workspace_bytes(problem.qk), quantizers::workspace_bytes(problem.v));
    detail::map_between(problem, rest_, nullptr, &workspace_bytes);
  }
  std::string tuning() const override { return "quantised first; " + attention_->tuning(); }

 private:
  bool is_empty() const override { return problem_.whole.total_q == 0 || problem_.whole.batch == 0; }

  Result<void> compute(const QuantizeAndAttendArgs& args, Workspace workspace, Stream stream, bool) const override {
    const detail::Between t = detail::map_between(problem_, rest_, static_cast<std::byte*>(workspace.data));
    if (Result<void> done = quantizers::launch_quantize(problem_.qk, t.qk(args), t.rest, stream); !done) return done;
    if (Result<void> done = quantizers::launch_quantize(problem_.v, t.values(args), args.cu_seqlens_q, t.rest, stream); !done) return done;
    return attention_->run(t.attention(args), {}, stream, false);
  }

  AttentionPlan attention_;
  std::size_t rest_ = 0;
};

detail::PlanResult<QuantizeAndAttendArgs> plan(const Problem& problem, Device device) {
  if (auto reason = decline_device(device, kLowestCapability, kAnyLater)) return *reason;
  if (auto reason = quantizers::why_not(problem.qk)) return *reason;
  if (auto reason = quantizers::why_not(problem.v)) return *reason;
  auto attention = implementations(detail::QuantizedAttention{}).front().plan(problem.attention, device);
  if (!attention) return attention.error();
  return std::shared_ptr<const detail::PlanState<QuantizeAndAttendArgs>>(std::make_shared<State>(problem, device, std::move(*attention)));
}

constexpr detail::Implementation<detail::QuantizeAndAttend> kRow{
    kName,
    "f16, bf16; head dims 64, 96, 128, 256; any strides",
    detail::handles<detail::QuantizeAndAttend>("ragged", "mask.left", "mask.right", "mask.anchor (top_left)", "lse", "v_dtype (e4m3)",
                                               "smooth_k", "smooth_v", "groups.granularity", "groups.warp_rows", "options.batch_invariant"),
    Backend::cuda,
    unavailable<kLowestCapability, kAnyLater>,
    plan};

}  // namespace

detail::Implementations<detail::QuantizeAndAttend> implementations(detail::QuantizeAndAttend) { return {&kRow, 1}; }

}  // namespace fovea::gpu::portable
