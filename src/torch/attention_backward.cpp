// SPDX-License-Identifier: Apache-2.0
#include "dense.hpp"
#include "operators.hpp"

namespace fovea::binding {
namespace {

struct Call : DenseCall {
  Tensor dout, dq, dk, dv;
  OptionalTensor dsink;
  PlanOptions options;
};

/// `implementation` keeps the text that the options refer to.
Call take_call(Arguments arguments, std::string& implementation) {
  Call call{take_dense(arguments),
            arguments.tensor(),
            arguments.tensor(),
            arguments.tensor(),
            arguments.tensor(),
            arguments.optional_tensor(),
            {}};
  implementation = arguments.text();
  call.options = {.implementation = implementation};
  return call;
}

AttentionBackwardPlan make_plan(const Call& call) {
  if (call.dsink.has_value() != call.sink.has_value()) {
    raise_invalid("dsink", call.dsink ? "a tensor" : "none", call.dsink ? "none, as there is no sink" : "a tensor, as sink is given");
  }
  const AttentionBackwardDesc desc{.forward = describe_dense(call),
                                   .dout = describe(call.dout, "dout"),
                                   .dq = describe(call.dq, "dq"),
                                   .dk = describe(call.dk, "dk"),
                                   .dv = describe(call.dv, "dv")};
  follow_torch_threads();
  return value_or_raise(plan_attention_backward(desc, call_device(), call.options));
}

}  // namespace

void attention_backward(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::string implementation;
  const Call call = take_call(Arguments(stack), implementation);
  const AttentionBackwardPlan plan = make_plan(call);
  float_vector(call.dsink, "dsink", call.q.size(call.q.dim() - 2));
  const AttentionBackwardArgs args{.forward = dense_args(call),
                                   .dout = data(call.dout),
                                   .dq = data(call.dq),
                                   .dk = data(call.dk),
                                   .dv = data(call.dv),
                                   .dsink = data_or_null<float>(call.dsink)};
  raise_if_failed(binding::run(plan, args));
}

void explain_attention_backward(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::string implementation;
  stack[0] = text_result(make_plan(take_call(Arguments(stack), implementation)).explain());
}

}  // namespace fovea::binding
