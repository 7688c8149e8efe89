// SPDX-License-Identifier: Apache-2.0
/// Dense MLA decode is the same engine on rows whose beginning is V.
#include "cpu/implementations.hpp"
#include "cpu/latent_attention/setup.hpp"
#include "op/latent_attention/problem.hpp"

namespace fovea::cpu {
namespace {

using detail::LatentAttentionProblem;

Call make_call(const LatentAttentionArgs& args) {
  return {.q = args.q,
          .k = args.cache,
          .v = args.cache,
          .out = args.out,
          .lse = args.lse,
          .k_scale = args.cache_scale,
          .v_scale = args.cache_scale,
          .cu_seqlens_q = args.cu_seqlens_q,
          .kv_len = args.kv_len,
          .block_table = args.block_table};
}

template <class Isa>
detail::PlanResult<LatentAttentionArgs> plan(const LatentAttentionProblem& problem, Device) {
  Setup setup = make_latent_setup<Isa>(problem, problem.ragged, problem.cache);
  setup.table_stride = problem.table_stride;
  if (problem.has_scale) setup.core.k_scale = setup.core.v_scale = ScaleDesc{};
  using State = AttentionState<LatentAttentionProblem, LatentAttentionArgs>;
  return std::shared_ptr<const detail::PlanState<LatentAttentionArgs>>(
      std::make_shared<State>(kEntryName<detail::LatentAttention, Isa>, problem, setup, make_call));
}

constexpr std::string_view kAccepts = "f32, f16, bf16, e4m3 and packed rows of 576 or 512; any heads, page and query length";
constexpr auto kHandled = detail::handles<detail::LatentAttention>(kEngineOptions, "options.exact_rows");

constexpr auto kEntries = Bf16Sets::each([]<class Isa>() { return entry<detail::LatentAttention, Isa>(kAccepts, kHandled, plan<Isa>); });

}  // namespace

detail::Implementations<detail::LatentAttention> implementations(detail::LatentAttention) { return kEntries; }

}  // namespace fovea::cpu
