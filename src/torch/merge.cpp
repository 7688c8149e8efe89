// SPDX-License-Identifier: Apache-2.0
#include "arguments.hpp"
#include "operators.hpp"

namespace fovea::binding {
namespace {

struct Call {
  std::vector<Tensor> outs, lses;
  Tensor out;
  OptionalTensor lse;
  PlanOptions options;
};

/// `implementation` keeps the text that the options refer to.
Call take_call(Arguments arguments, std::string& implementation) {
  Call call{.outs = arguments.tensors(),
            .lses = arguments.tensors(),
            .out = arguments.tensor(),
            .lse = arguments.optional_tensor(),
            .options = {}};
  implementation = arguments.text();
  call.options = {.implementation = implementation};
  return call;
}

/// "parts[3].out", as the library names it.
std::string part_name(std::size_t index, const char* member) {
  return std::string("parts[").append(std::to_string(index)).append("].").append(member);
}

auto make_plan(const Call& call) {
  if (call.outs.size() != call.lses.size()) {
    raise_invalid("lses.size (parts)", std::to_string(call.lses.size()), std::to_string(call.outs.size()) + ", as many as outs");
  }
  MergeStatesDesc desc{.out = describe(call.out, "out"), .lse = describe(call.lse, "lse")};
  for (std::size_t part = 0; part < call.outs.size(); ++part) {
    desc.parts.push_back(
        {describe(call.outs[part], part_name(part, "out").c_str()), describe(call.lses[part], part_name(part, "lse").c_str())});
  }
  follow_torch_threads();
  return Planned(desc, value_or_raise(plan_merge_states(desc, call_device(), call.options)));
}

}  // namespace

void merge_states(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::string implementation;
  const Call call = take_call(Arguments(stack), implementation);
  const auto& [desc, plan, device] = remembered([&] { return make_plan(call); });
  std::vector<MergeStatesArgs::Part> parts;
  parts.reserve(call.outs.size());
  for (std::size_t part = 0; part < call.outs.size(); ++part) {
    parts.push_back({data(call.outs[part]), static_cast<const float*>(data(call.lses[part]))});
  }
  const MergeStatesArgs args{.parts = parts, .out = data(call.out), .lse = data_or_null<float>(call.lse)};
  raise_if_failed(binding::run(plan, args));
}

void explain_merge_states(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::string implementation;
  stack[0] = text_result(make_plan(take_call(Arguments(stack), implementation)).plan.explain());
}

}  // namespace fovea::binding
