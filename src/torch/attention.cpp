// SPDX-License-Identifier: Apache-2.0
#include "fields.hpp"
#include "op/attention/fields.hpp"
#include "operators.hpp"

namespace fovea::binding {
namespace {

using AttentionCall = Call<detail::kAttentionFields, Asks::options>;

}  // namespace

void attention(StableIValue* stack, std::uint64_t, std::uint64_t) { run_call<AttentionCall, plan_attention>(stack); }
void explain_attention(StableIValue* stack, std::uint64_t, std::uint64_t) { explain_call<AttentionCall, plan_attention>(stack); }

}  // namespace fovea::binding
