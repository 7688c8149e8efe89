// SPDX-License-Identifier: Apache-2.0
#include "fields.hpp"
#include "op/attention/fields.hpp"
#include "operators.hpp"

namespace fovea::binding {
namespace {

using AttentionCall = Call<detail::kAttentionFields, true>;

AttentionPlan make_plan(const AttentionCall& call, const AttentionDesc& desc) {
  follow_torch_threads();
  return value_or_raise(plan_attention(desc, call_device(), call.options()));
}

}  // namespace

void attention(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const AttentionCall call{Arguments(stack)};
  const AttentionDesc desc = call.describe();
  const AttentionPlan plan = make_plan(call, desc);
  raise_if_failed(binding::run(plan, call.pointers(desc)));
}

void explain_attention(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const AttentionCall call{Arguments(stack)};
  stack[0] = text_result(make_plan(call, call.describe()).explain());
}

}  // namespace fovea::binding
