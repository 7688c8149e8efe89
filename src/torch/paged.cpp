// SPDX-License-Identifier: Apache-2.0
#include "fields.hpp"
#include "op/paged_attention/fields.hpp"
#include "op/paged_cache_append/fields.hpp"
#include "operators.hpp"

namespace fovea::binding {
namespace {

using PagedAttentionCall = Call<detail::kPagedAttentionFields, true>;
using PagedCacheAppendCall = Call<detail::kPagedCacheAppendFields, false>;

PagedAttentionDesc describe(const PagedAttentionCall& call) {
  PagedAttentionDesc desc = call.describe();
  desc.max_seq_q = query_bound(call.value<"cu_seqlens_q">(), desc.max_seq_q, desc.q.shape[0], desc.block_table.shape[0]);
  return desc;
}

}  // namespace

void paged_attention(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const PagedAttentionCall call{Arguments(stack)};
  const auto& [desc, plan, device] = remembered([&] { return planned<PagedAttentionCall, plan_paged_attention>(call, describe(call)); });
  PagedAttentionArgs args = call.pointers(desc);
  if (args.cu_seqlens_q == nullptr) args.cu_seqlens_q = query_lengths(call.value<"cu_seqlens_q">(), desc.block_table.shape[0]);
  raise_if_failed(binding::run(plan, args));
}

void explain_paged_attention(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const PagedAttentionCall call{Arguments(stack)};
  stack[0] = text_result(planned<PagedAttentionCall, plan_paged_attention>(call, describe(call)).plan.explain());
}

void paged_cache_append(StableIValue* stack, std::uint64_t, std::uint64_t) {
  run_call<PagedCacheAppendCall, plan_paged_cache_append>(stack);
}
void explain_paged_cache_append(StableIValue* stack, std::uint64_t, std::uint64_t) {
  explain_call<PagedCacheAppendCall, plan_paged_cache_append>(stack);
}

}  // namespace fovea::binding
