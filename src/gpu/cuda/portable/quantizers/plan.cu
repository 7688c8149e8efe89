// SPDX-License-Identifier: Apache-2.0
/// The quantisers of 8-bit attention: accept or decline.
#include <memory>
#include <string>

#include "gpu/cuda/portable/implementations.hpp"
#include "gpu/cuda/portable/quantizers/steps.hpp"
#include "gpu/plan_state.hpp"
#include "op/quantized_attention/problem.hpp"

namespace fovea::gpu::portable {
namespace {

template <class Operation>
constexpr std::string_view kName = "cuda.portable.quantize_qk_int8";
template <>
constexpr std::string_view kName<detail::QuantizeV> = "cuda.portable.quantize_v";

quantizers::Tensors tensors_of(const detail::QuantizeQkInt8Problem& problem, const QuantizeQkInt8Args& args) {
  return {.qk = &problem, .qk_args = args, .cu_seqlens_q = args.cu_seqlens_q};
}
quantizers::Tensors tensors_of(const detail::QuantizeVProblem& problem, const QuantizeVArgs& args) {
  return {.v = &problem, .v_args = args};
}

template <class Operation>
class State final : public PlanState<typename Operation::Problem, typename Operation::Args> {
  using Base = PlanState<typename Operation::Problem, typename Operation::Args>;

 public:
  State(const typename Operation::Problem& problem, Device device)
      : Base(kName<Operation>, problem, device), properties_(*properties(device)) {
    this->workspace_bytes = quantizers::workspace_bytes(tensors_of(problem, {}));
  }
  std::string tuning() const override { return "128 tokens of a head at a time"; }

 private:
  bool is_empty() const override { return this->problem_.batch == 0; }
  Result<void> compute(const typename Operation::Args& args, Workspace workspace, Stream stream, bool) const override {
    return quantizers::launch_quantize(tensors_of(this->problem_, args), properties_, workspace.data, stream);
  }

  DeviceProperties properties_;
};

template <class Operation>
detail::PlanResult<typename Operation::Args> plan(const typename Operation::Problem& problem, Device device) {
  if (auto reason = decline_device(device, kLowestCapability, kAnyLater)) return *reason;
  if (auto reason = quantizers::why_not(problem)) return *reason;
  return std::shared_ptr<const detail::PlanState<typename Operation::Args>>(std::make_shared<State<Operation>>(problem, device));
}

template <class Operation>
constexpr auto kHandled = detail::handles<detail::QuantizeQkInt8>("ragged", "k_mean", "lse_shift", "groups.granularity",
                                                                  "groups.warp_rows");
template <>
constexpr auto kHandled<detail::QuantizeV> = detail::handles<detail::QuantizeV>("ragged", "v_scale", "v_mean");

template <class Operation>
constexpr detail::Implementation<Operation> kRow{kName<Operation>,
                                                 "f16, bf16; head dims 64, 96, 128, 256; any strides",
                                                 kHandled<Operation>,
                                                 Backend::cuda,
                                                 unavailable<kLowestCapability, kAnyLater>,
                                                 plan<Operation>};

}  // namespace

detail::Implementations<detail::QuantizeQkInt8> implementations(detail::QuantizeQkInt8) { return {&kRow<detail::QuantizeQkInt8>, 1}; }
detail::Implementations<detail::QuantizeV> implementations(detail::QuantizeV) { return {&kRow<detail::QuantizeV>, 1}; }

}  // namespace fovea::gpu::portable
