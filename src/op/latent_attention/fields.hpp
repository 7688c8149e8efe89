// SPDX-License-Identifier: Apache-2.0
/// The fields of dense latent attention, in the order of torch's schema. Its option `ragged` is no field but the rank of q: problem.hpp has
/// them.
#pragma once

#include "fovea/latent_attention.hpp"
#include "op/common/fields.hpp"
#include "op/latent_attention/problem.hpp"

namespace fovea::detail {

inline constexpr auto kLatentAttentionFields = [] {
  using P = LatentAttentionProblem;
  using D = LatentAttentionDesc;
  using A = LatentAttentionArgs;
  using C = fovea_latent_attention_desc;
  using B = fovea_latent_attention_args;
  using T = FieldTypes<P, D, A, C, B>;
  constexpr auto any_q = [](const P& p) { return p.total_q > 0; };
  constexpr auto any_slot = [](const P& p) { return p.cache.blocks > 0 && p.max_blocks > 0; };
  constexpr auto any_block = [](const P& p) { return p.batch > 0 && p.max_blocks > 0; };
  constexpr auto any_sequence = [](const P& p) { return p.batch > 0; };
  constexpr auto cache_alignment = [](const P& p) { return p.cache.alignment; };
  constexpr auto batch = [](const D& d) { return d.block_table.shape[0]; };
  constexpr auto batch_and_one = [](const D& d) { return d.block_table.shape[0] + 1; };
  return std::tuple{
      Field<T, &D::q, &C::q, &A::q, &B::q>{"q", any_q, kIts<&P::q_base_alignment>},
      Field<T, &D::cache, &C::cache, &A::cache, &B::cache>{"cache", any_slot, cache_alignment},
      Field<T, &D::block_table, &C::block_table, &A::block_table, &B::block_table>{"block_table", any_block},
      Field<T, &A::cu_seqlens_q, &B::cu_seqlens_q>{
          .name = "cu_seqlens_q", .needed = kIts<&P::ragged>, .count = batch_and_one, .may_be_absent = true},
      Field<T, &A::kv_len, &B::kv_len>{.name = "kv_len", .needed = any_sequence, .count = batch},
      Field<T, &D::out, &C::out, &A::out, &B::out>{"out", any_q, kIts<&P::out_base_alignment>},
      Field<T, &D::lse, &C::lse, &A::lse, &B::lse, &P::has_lse>{"lse", any_q},
      Field<T, &D::max_seq_q, &C::max_seq_q>{"max_seqlen_q"},
      Field<T, &D::max_kv_len, &C::max_kv_len>{"max_kv_len"},
      Field<T, &D::mask, &C::mask, &P::mask>{"mask"},
      Field<T, &D::scale, &C::scale>{"scale"},
      Field<T, &D::has_scale, &C::has_scale, &A::cache_scale, &B::cache_scale, &P::has_scale>{"cache_scale"},
  };
}();
static_assert(names_every_pointer<LatentAttentionArgs>(kLatentAttentionFields));

/// A ragged batch has no field of its own: the rank of q says it.
inline constexpr auto kLatentAttentionOptions =
    options_of<kLatentAttentionFields>(option::kRagged<LatentAttentionProblem>, option::kExactRows<LatentAttentionProblem>);

}  // namespace fovea::detail
