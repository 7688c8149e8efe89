// SPDX-License-Identifier: Apache-2.0
#include "fields.hpp"
#include "op/paged_attention/fields.hpp"
#include "op/paged_cache_append/fields.hpp"
#include "operators.hpp"

namespace fovea::binding {
namespace {

using AttentionCall = Call<detail::kPagedAttentionFields, true>;
using AppendCall = Call<detail::kPagedCacheAppendFields, false>;

PagedAttentionDesc describe(const AttentionCall& call) {
  PagedAttentionDesc desc = call.describe();
  desc.max_seq_q = query_bound(call.value<"cu_seqlens_q">(), desc.max_seq_q, desc.q.shape[0], desc.block_table.shape[0]);
  return desc;
}

PagedAttentionPlan make_plan(const AttentionCall& call, const PagedAttentionDesc& desc) {
  follow_torch_threads();
  return value_or_raise(plan_paged_attention(desc, call_device(), call.options()));
}

PagedCacheAppendPlan make_plan(const AppendCall& call, const PagedCacheAppendDesc& desc) {
  follow_torch_threads();
  return value_or_raise(plan_paged_cache_append(desc, call_device(), call.options()));
}

}  // namespace

void paged_attention(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const AttentionCall call{Arguments(stack)};
  const PagedAttentionDesc desc = describe(call);
  const PagedAttentionPlan plan = make_plan(call, desc);
  PagedAttentionArgs args = call.pointers(desc);
  if (args.cu_seqlens_q == nullptr) args.cu_seqlens_q = query_lengths(call.value<"cu_seqlens_q">(), desc.block_table.shape[0]);
  raise_if_failed(binding::run(plan, args));
}

void explain_paged_attention(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const AttentionCall call{Arguments(stack)};
  stack[0] = text_result(make_plan(call, describe(call)).explain());
}

void paged_cache_append(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const AppendCall call{Arguments(stack)};
  const PagedCacheAppendDesc desc = call.describe();
  const PagedCacheAppendPlan plan = make_plan(call, desc);
  raise_if_failed(binding::run(plan, call.pointers(desc)));
}

void explain_paged_cache_append(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const AppendCall call{Arguments(stack)};
  stack[0] = text_result(make_plan(call, call.describe()).explain());
}

}  // namespace fovea::binding
