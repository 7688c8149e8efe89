// SPDX-License-Identifier: Apache-2.0
/// Dense MLA decode is the same engine on rows whose beginning is V.
#include <array>

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
constexpr auto kName = name_of_row<Isa>(".latent_attention");

template <class Isa>
detail::PlanResult<LatentAttentionArgs> plan(const LatentAttentionProblem& problem, Device) {
  Setup setup = make_latent_setup<Isa>(problem, problem.ragged, problem.cache);
  setup.table_stride = problem.table_stride;
  if (problem.has_scale) setup.core.k_scale = setup.core.v_scale = ScaleDesc{};
  using State = AttentionState<LatentAttentionProblem, LatentAttentionArgs>;
  return std::shared_ptr<const detail::PlanState<LatentAttentionArgs>>(
      std::make_shared<State>(kName<Isa>.view(), problem, setup, make_call));
}

constexpr std::string_view kAccepts = "f32, f16, bf16, e4m3 and packed rows of 576 or 512; any heads, page and query length";
constexpr auto kHandled =
    detail::handles<detail::LatentAttention>("ragged", "mask.left", "mask.right", "lse", "cache_scale", "options.batch_invariant");

template <class Isa>
constexpr detail::Implementation<detail::LatentAttention> kRow{
    kName<Isa>.view(), kAccepts, kHandled, Backend::cpu, Isa::kUnavailable, plan<Isa>, outdone<Isa, LatentAttentionProblem>()};

constexpr std::array kRows{
#ifdef FOVEA_X86
    kRow<Amx>,   kRow<Avx512Bf16>, kRow<Avx512>, kRow<Avx2>,
#endif
#ifdef FOVEA_NEON
    kRow<Neon>,
#endif
    kRow<Scalar>};

}  // namespace

detail::Implementations<detail::LatentAttention> implementations(detail::LatentAttention) { return kRows; }

}  // namespace fovea::cpu
