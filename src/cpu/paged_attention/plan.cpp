// SPDX-License-Identifier: Apache-2.0
/// Paged attention is the same engine: only the addresses of K and V rows go through the block table.
#include "cpu/attention/plan.hpp"

#include "cpu/implementations.hpp"
#include "op/paged_attention/problem.hpp"

namespace fovea::cpu {
namespace {

using detail::PagedAttentionProblem;

Call make_call(const PagedAttentionArgs& args) {
  Call call = common_call(args);
  call.k = args.k_cache;
  call.v = args.v_cache;
  call.kv_len = args.kv_len;
  call.block_table = args.block_table;
  call.packed_mask = {args.packed_mask, args.mask_indptr};
  return call;
}

KvStrides in_bytes(const detail::CacheStrides& strides, DType dtype) {
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  return {.block = strides.block * size, .row = strides.token * size, .head = strides.head * size};
}

template <class Isa>
detail::PlanResult<PagedAttentionArgs> plan(const PagedAttentionProblem& problem, Device) {
  if (auto reason = detail::decline_widest_head_dims(problem)) return *reason;
  Setup setup = make_setup<Isa>(problem, true);
  setup.paged = true;
  setup.page = problem.page;
  setup.table_stride = problem.table_stride;
  setup.k = in_bytes(problem.k, problem.kv_dtype);
  setup.v = in_bytes(problem.v, problem.kv_dtype);
  using State = AttentionState<PagedAttentionProblem, PagedAttentionArgs>;
  return std::shared_ptr<const detail::PlanState<PagedAttentionArgs>>(
      std::make_shared<State>(kEntryName<detail::PagedAttention, Isa>, problem, setup, make_call));
}

constexpr std::string_view kAccepts = "f32, f16, bf16, e4m3 caches; head dims that are multiples of 8 up to 512; any page";
constexpr auto kHandled = detail::handles<detail::PagedAttention>(kEngineOptions);

constexpr auto kEntries = Bf16Sets::each([]<class Isa>() { return entry<detail::PagedAttention, Isa>(kAccepts, kHandled, plan<Isa>); });

}  // namespace

detail::Implementations<detail::PagedAttention> implementations(detail::PagedAttention) { return kEntries; }

}  // namespace fovea::cpu
