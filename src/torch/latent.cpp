// SPDX-License-Identifier: Apache-2.0
#include "fields.hpp"
#include "op/latent_attention/fields.hpp"
#include "operators.hpp"

namespace fovea::binding {
namespace {

using LatentCall = Call<detail::kLatentAttentionFields, Asks::schedule>;

LatentAttentionDesc describe(const LatentCall& call) {
  LatentAttentionDesc desc = call.describe();
  const OptionalTensor& cu_seqlens_q = call.value<"cu_seqlens_q">();
  if (desc.q.rank == 3) {
    desc.max_seq_q = query_bound(cu_seqlens_q, desc.max_seq_q, desc.q.shape[0], desc.block_table.shape[0]);
  } else if (cu_seqlens_q) {
    raise_invalid("q.rank", std::to_string(desc.q.rank), "3 ([total_q, head, d]), as cu_seqlens_q is given");
  } else if (desc.max_seq_q != 0) {
    raise_invalid("max_seqlen_q", std::to_string(desc.max_seq_q), "0 (none), as q has a batch");
  }
  return desc;
}

auto make_plan(const LatentCall& call) { return planned<LatentCall, plan_latent_attention>(call, describe(call)); }

/// Attending and preparing share their plans.
const auto& prepared(const LatentCall& call) {
  return remembered([&] { return make_plan(call); });
}

/// One row a sequence of a ragged batch, if nothing else is said.
LatentAttentionArgs with_lengths(LatentAttentionArgs args, const LatentAttentionDesc& desc) {
  if (desc.q.rank == 3 && args.cu_seqlens_q == nullptr) args.cu_seqlens_q = query_lengths(std::nullopt, desc.block_table.shape[0]);
  return args;
}

LatentAttentionArgs pointers(const LatentCall& call, const LatentAttentionDesc& desc) { return with_lengths(call.pointers(desc), desc); }

LatentAttentionArgs args_at(const LatentAttentionDesc& desc, void* const* addresses) {
  return with_lengths(LatentCall::args_at(desc, addresses), desc);
}

}  // namespace

void latent_attention(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const LatentCall call{Arguments(stack)};
  const auto& kept = prepared(call);
  raise_if_failed(binding::run(kept.plan, pointers(call, kept.desc), call.schedule));
  may_be_repeated<args_at, LatentCall::tensors()>(kept);
}

void explain_latent_attention(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const LatentCall call{Arguments(stack)};
  stack[0] = text_result(make_plan(call).plan.explain());
}

void prepare_latent_attention(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const LatentCall call{Arguments(stack)};
  const auto& [desc, plan, device] = prepared(call);
  stack[0] = torch::stable::detail::from(value_or_raise(binding::prepare(plan, pointers(call, desc))));
}

void schedule_bytes_latent_attention(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const LatentCall call{Arguments::of_planning(stack)};
  stack[0] = torch::stable::detail::from(schedule_bytes(make_plan(call).plan));
}

}  // namespace fovea::binding
