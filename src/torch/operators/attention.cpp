// SPDX-License-Identifier: Apache-2.0
/// Dense attention and its gradient.
#include "op/attention/fields.hpp"
#include "op/attention_backward/fields.hpp"
#include "operation.hpp"

namespace fovea::binding {
namespace {

using Attention = OverFields<detail::kAttentionFields, plan_attention, Asks::options>;

struct AttentionBackward {
  /// The forward pass, then the gradients.
  struct Call {
    explicit Call(Arguments& arguments) : forward(arguments), gradients(arguments) {}

    PlanOptions options() const { return gradients.options(); }

    Fields<detail::kDenseFields> forward;
    FieldCall<detail::kAttentionBackwardFields, Asks::gradient> gradients;
  };

  static AttentionBackwardDesc describe(const Call& call) {
    const bool has_sink = call.forward.value<"sink">().has_value(), has_dsink = call.gradients.value<"dsink">().has_value();
    if (has_dsink != has_sink) {
      raise_invalid("dsink", has_dsink ? "a tensor" : "none", has_dsink ? "none, as there is no sink" : "a tensor, as sink is given");
    }
    const AttentionDesc forward = call.forward.describe();
    AttentionBackwardDesc desc = call.gradients.describe();
    desc.forward = forward;
    return desc;
  }

  static constexpr auto kPlan = plan_attention_backward;

  static void check(const Call& call, const AttentionBackwardDesc& desc) {
    call.gradients.check_vectors(desc);
    call.forward.check_vectors(desc.forward);
  }

  static AttentionBackwardArgs args(const AttentionBackwardDesc& desc, void* const* addresses) {
    constexpr int kForward = Fields<detail::kDenseFields>::tensors();
    AttentionBackwardArgs args = Fields<detail::kAttentionBackwardFields>::args(desc, addresses + kForward);
    args.forward = Fields<detail::kDenseFields>::args(desc.forward, addresses);
    return args;
  }
};

}  // namespace

std::vector<Operation> attention_operations() {
  return {operation<Attention>("attention(" + schema_of(detail::kAttentionFields) + kOptions),
          operation<AttentionBackward>("attention_backward(" + read_only(schema_of(detail::kDenseFields)) + ", " +
                                       schema_of(detail::kAttentionBackwardFields) + kGradient)};
}

}  // namespace fovea::binding
