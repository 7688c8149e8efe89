// SPDX-License-Identifier: Apache-2.0
#include "dense.hpp"
#include "operators.hpp"

namespace fovea::binding {
namespace {

struct Call : DenseCall {
  OptionalTensor q_scale, k_scale, v_scale;
  PlanOptions options;
};

/// `implementation` keeps the text that the options refer to.
Call take_call(Arguments arguments, std::string& implementation) {
  Call call{take_dense(arguments), arguments.optional_tensor(), arguments.optional_tensor(), arguments.optional_tensor(), {}};
  implementation = arguments.text();
  call.options = {.implementation = implementation, .batch_invariant = arguments.flag()};
  return call;
}

AttentionPlan make_plan(const Call& call) {
  AttentionDesc desc = describe_dense(call);
  const std::int64_t batch = desc.ragged ? desc.ragged->batch : desc.q.shape[0];
  const std::int64_t kv_head = desc.k.rank >= 2 ? desc.k.shape[static_cast<std::size_t>(desc.k.rank - 2)] : 0;
  desc.q_scale = describe_scale(call.q_scale, "q_scale", batch, kv_head);
  desc.k_scale = describe_scale(call.k_scale, "k_scale", batch, kv_head);
  desc.v_scale = describe_scale(call.v_scale, "v_scale", batch, kv_head);
  follow_torch_threads();
  return value_or_raise(plan_attention(desc, call_device(), call.options));
}

}  // namespace

void attention(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::string implementation;
  const Call call = take_call(Arguments(stack), implementation);
  const AttentionPlan plan = make_plan(call);
  AttentionArgs args = dense_args(call);
  args.q_scale = data_or_null<const float>(call.q_scale);
  args.k_scale = data_or_null<const float>(call.k_scale);
  args.v_scale = data_or_null<const float>(call.v_scale);
  raise_if_failed(binding::run(plan, args));
}

void explain_attention(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::string implementation;
  stack[0] = text_result(make_plan(take_call(Arguments(stack), implementation)).explain());
}

}  // namespace fovea::binding
