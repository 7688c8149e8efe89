// SPDX-License-Identifier: Apache-2.0
#include "fields.hpp"
#include "op/attention/fields.hpp"
#include "op/attention_backward/fields.hpp"
#include "operators.hpp"

namespace fovea::binding {
namespace {

/// The forward pass, then the gradients.
struct BackwardCall {
  explicit BackwardCall(Arguments&& arguments) : forward(arguments), gradients(arguments) {}

  Fields<detail::kDenseFields> forward;
  Call<detail::kAttentionBackwardFields, Asks::implementation> gradients;
};

AttentionBackwardDesc describe(const BackwardCall& call) {
  const bool has_sink = call.forward.value<"sink">().has_value(), has_dsink = call.gradients.value<"dsink">().has_value();
  if (has_dsink != has_sink) {
    raise_invalid("dsink", has_dsink ? "a tensor" : "none", has_dsink ? "none, as there is no sink" : "a tensor, as sink is given");
  }
  const AttentionDesc forward = call.forward.describe();
  AttentionBackwardDesc desc = call.gradients.describe();
  desc.forward = forward;
  return desc;
}

auto make_plan(const BackwardCall& call) {
  const AttentionBackwardDesc desc = describe(call);
  follow_torch_threads();
  return Planned(desc, value_or_raise(plan_attention_backward(desc, call_device(), call.gradients.options())));
}

}  // namespace

void attention_backward(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const BackwardCall call{Arguments(stack)};
  const auto& [desc, plan, device] = remembered([&] { return make_plan(call); });
  AttentionBackwardArgs args = call.gradients.pointers(desc);
  args.forward = call.forward.pointers(desc.forward);
  raise_if_failed(binding::run(plan, args));
}

void explain_attention_backward(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const BackwardCall call{Arguments(stack)};
  stack[0] = text_result(make_plan(call).plan.explain());
}

}  // namespace fovea::binding
