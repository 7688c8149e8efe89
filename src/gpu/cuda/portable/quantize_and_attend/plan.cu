// SPDX-License-Identifier: Apache-2.0
/// Quantises into the workspace by the portable kernel, and attends by the fastest one of the device.
#include <algorithm>
#include <array>
#include <memory>
#include <string>

#include "gpu/cuda/common/value_tiles.hpp"
#include "gpu/cuda/portable/implementations.hpp"
#include "gpu/cuda/portable/quantizers/steps.hpp"
#include "gpu/plan_state.hpp"
#include "op/quantized_attention/problem.hpp"
#include "plan/select.hpp"

namespace fovea::gpu::portable {
namespace {

using Problem = detail::QuantizeAndAttendProblem;
using AttentionPlan = std::shared_ptr<const detail::PlanState<QuantizedAttentionArgs>>;

constexpr std::string_view kName = "cuda.portable.quantize_and_attend";

class State final : public PlanState<Problem, QuantizeAndAttendArgs> {
 public:
  State(const Problem& problem, Device device, AttentionPlan attention)
      : PlanState(kName, problem, device), properties_(*properties(device)), attention_(std::move(attention)) {
    rest_ = attention_->workspace_bytes;  // one step at a time
    for (const quantizers::Tensors& tensors : launches({}, {})) rest_ = std::max(rest_, quantizers::workspace_bytes(tensors));
    detail::map_between(problem, rest_, nullptr, &workspace_bytes);
  }
  std::string tuning() const override {
    return (problem_.attention.v_in_tiles ? "quantised first, v into key tiles; " : "quantised first; ") +
           std::string(attention_->implementation) + ": " + attention_->tuning();
  }

 private:
  bool is_empty() const override { return problem_.whole.total_q == 0 || problem_.whole.batch == 0; }

  Result<void> compute(const QuantizeAndAttendArgs& args, Workspace workspace, Stream stream, bool) const override {
    const detail::Between t = detail::map_between(problem_, rest_, static_cast<std::byte*>(workspace.data));
    for (const quantizers::Tensors& tensors : launches(t, args)) {
      if (Result<void> done = quantizers::launch_quantize(tensors, properties_, t.rest, stream); !done) return done;
    }
    return attention_->run(t.attention(args), {t.rest, rest_}, stream, false);
  }

  /// All tensors in one launch, where they have rows of one length; else the second one has v.
  std::array<quantizers::Tensors, 2> launches(const detail::Between& t, const QuantizeAndAttendArgs& args) const {
    quantizers::Tensors qk{.qk = &problem_.qk, .qk_args = t.qk(args), .cu_seqlens_q = args.cu_seqlens_q}, v{};
    quantizers::Tensors& with_v = problem_.qk.k.head_dim == problem_.v.v.head_dim ? qk : v;
    with_v.v = &problem_.v;
    with_v.v_args = t.values(args);
    with_v.cu_seqlens_q = args.cu_seqlens_q;
    with_v.v_in_tiles = problem_.attention.v_in_tiles;
    return {qk, v};
  }

  DeviceProperties properties_;
  AttentionPlan attention_;
  std::size_t rest_ = 0;
};

/// By the fastest CUDA entry that does not decline; the last one's reason if all do. Says where that entry takes v.
detail::PlanResult<QuantizedAttentionArgs> plan_attention(detail::QuantizedAttentionProblem& problem, Device device) {
  Error reason = detail::declined("device.backend", name_of(device.backend), name_of(Backend::cuda));
  for (const auto& candidate : detail::implementations_of<detail::QuantizedAttention>()) {
    if (candidate.backend != Backend::cuda) continue;
    problem.v_in_tiles = candidate.serves.value_tiles && problem.v_dtype == DType::e4m3;
    auto planned = detail::plan_with(candidate, problem, device, false);
    if (planned || planned.error().code != ErrorCode::unsupported) return planned;
    reason = planned.error();
  }
  return reason;
}

detail::PlanResult<QuantizeAndAttendArgs> plan(const Problem& problem, Device device) {
  if (auto reason = decline_device(device, kLowestCapability, kAnyLater)) return *reason;
  if (auto reason = quantizers::why_not(problem.qk)) return *reason;
  if (auto reason = quantizers::why_not(problem.v)) return *reason;
  Problem whole = problem;
  auto attention = plan_attention(whole.attention, device);
  if (!attention) return attention.error();
  if (whole.attention.v_in_tiles) {
    whole.v_bytes = value_tile_count(whole.attention, kQuantizedValueKeys) * kQuantizedValueKeys * whole.attention.head_dim_v;
  }
  return std::shared_ptr<const detail::PlanState<QuantizeAndAttendArgs>>(std::make_shared<State>(whole, device, std::move(*attention)));
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
