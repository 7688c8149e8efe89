// SPDX-License-Identifier: Apache-2.0
/// Merging partial attention results.
#include "operation.hpp"

namespace fovea::binding {
namespace {

struct MergeStates {
  struct Call {
    explicit Call(Arguments& arguments)
        : outs(arguments.tensors()),
          lses(arguments.tensors()),
          out(arguments.tensor()),
          lse(arguments.optional_tensor()),
          implementation(arguments.text()) {}

    PlanOptions options() const { return {.implementation = implementation}; }

    std::vector<Tensor> outs, lses;
    Tensor out;
    OptionalTensor lse;
    std::string implementation;
  };

  /// "parts[3].out", as the library names it.
  static std::string part_name(std::size_t index, const char* member) {
    return std::string("parts[").append(std::to_string(index)).append("].").append(member);
  }

  static MergeStatesDesc describe(const Call& call) {
    if (call.outs.size() != call.lses.size()) {
      raise_invalid("lses.size (parts)", std::to_string(call.lses.size()), std::to_string(call.outs.size()) + ", as many as outs");
    }
    MergeStatesDesc desc{.out = binding::describe(call.out, "out"), .lse = binding::describe(call.lse, "lse")};
    for (std::size_t part = 0; part < call.outs.size(); ++part) {
      desc.parts.push_back({binding::describe(call.outs[part], part_name(part, "out").c_str()),
                            binding::describe(call.lses[part], part_name(part, "lse").c_str())});
    }
    return desc;
  }

  static constexpr auto kPlan = plan_merge_states;

  static void check(const Call& /*call*/, const MergeStatesDesc& /*desc*/) {}

  /// Valid until the thread's next call.
  static MergeStatesArgs args(const MergeStatesDesc& desc, void* const* addresses) {
    thread_local std::vector<MergeStatesArgs::Part> parts;
    const std::size_t count = desc.parts.size();
    parts.clear();
    for (std::size_t part = 0; part < count; ++part) parts.push_back({addresses[part], static_cast<const float*>(addresses[count + part])});
    return {.parts = parts, .out = addresses[2 * count], .lse = static_cast<float*>(addresses[2 * count + 1])};
  }
};

}  // namespace

std::vector<Operation> merge_operations() {
  return {operation<MergeStates>("merge_states(Tensor[] outs, Tensor[] lses, Tensor(a!) out, Tensor(b!)? lse, str implementation)")};
}

}  // namespace fovea::binding
