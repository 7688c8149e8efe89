// SPDX-License-Identifier: Apache-2.0
/// The fields of dense attention, in the order of torch's schema.
#pragma once

#include <algorithm>

#include "fovea/attention.hpp"
#include "op/attention/problem.hpp"
#include "op/common/fields.hpp"

namespace fovea::detail {

constexpr bool has_elements(const TensorDesc& tensor) {
  return std::all_of(tensor.shape.begin(), tensor.shape.begin() + tensor.rank, [](std::int64_t extent) { return extent > 0; });
}

/// Those that its gradient takes too.
inline constexpr auto kDenseFields = [] {
  using P = AttentionProblem;
  using D = AttentionDesc;
  using A = AttentionArgs;
  using C = fovea_attention_desc;
  using B = fovea_attention_args;
  using T = FieldTypes<P, D, A, C, B>;
  constexpr auto any_q = [](const P& p) { return p.total_q > 0; };
  constexpr auto any_k = [](const P& p) { return p.total_k > 0; };
  constexpr auto any_pair = [](const P& p) { return p.total_q > 0 && p.total_k > 0 && p.max_seq_q > 0 && p.max_seq_k > 0; };
  constexpr auto drops = [](const P& p) { return p.dropout_p > 0; };
  constexpr auto two = [](const D&) { return std::int64_t{2}; };
  constexpr auto ragged = [](const P& p) { return p.ragged; };
  constexpr auto heads = [](const D& d) { return extent_from_last(d.q, 2); };
  constexpr auto has_full = [](const P& p) { return p.full_block_indices && has_elements(p.full_block_counts); };
  constexpr auto full_slots = [](const P& p) { return p.full_block_indices && has_elements(*p.full_block_indices); };
  constexpr auto has_partial = [](const P& p) { return p.partial_block_indices && has_elements(p.partial_block_counts); };
  constexpr auto partial_slots = [](const P& p) { return p.partial_block_indices && has_elements(*p.partial_block_indices); };
  constexpr auto ends = [](const D& d) { return d.ragged ? d.ragged->batch + 1 : 0; };
  constexpr auto batch_and_one = [](const D& d) { return (d.ragged ? d.ragged->batch : d.q.shape[0]) + 1; };
  constexpr auto any_bit = [](const P& p) { return p.total_q > 0 && p.packed_mask->bytes > 0; };
  constexpr auto segments = [](const P& p) { return p.packed_mask && p.packed_mask->row_bytes == 0 && p.batch > 1; };
  return std::tuple{
      Field<T, &D::q, &C::q, &A::q, &B::q>{.name = "q", .needed = any_q, .alignment = kIts<&P::q_base_alignment>},
      Field<T, &D::k, &C::k, &A::k, &B::k>{"k", any_k, kIts<&P::k_base_alignment>},
      Field<T, &D::v, &C::v, &A::v, &B::v>{"v", any_k, kIts<&P::v_base_alignment>},
      Field<T, &D::out, &C::out, &A::out, &B::out>{"out", any_q, kIts<&P::out_base_alignment>},
      Field<T, &D::lse, &C::lse, &A::lse, &B::lse, &P::has_lse>{"lse", any_q},
      Field<T, &A::cu_seqlens_q, &B::cu_seqlens_q>{.name = "cu_seqlens_q", .needed = ragged, .count = ends, .may_be_absent = true},
      Field<T, &A::cu_seqlens_k, &B::cu_seqlens_k>{.name = "cu_seqlens_k", .needed = ragged, .count = ends, .may_be_absent = true},
      Field<T, &D::ragged, &C::ragged, &P::ragged>{"ragged"},
      Field<T, &D::mask, &C::mask, &P::mask>{.name = "mask", .has_anchor = true},
      Field<T, &D::scale, &C::scale>{"scale"},
      Field<T, &D::softcap, &C::softcap, &P::softcap>{"softcap"},
      Field<T, &D::has_sink, &C::has_sink, &A::sink, &B::sink, &P::has_sink>{.name = "sink", .needed = any_q, .count = heads},
      Field<T, &D::full_block_counts, &C::full_block_counts, &A::full_block_counts, &B::full_block_counts>{"full_block_counts", has_full},
      Field<T, &D::full_block_indices, &C::full_block_indices, &A::full_block_indices, &B::full_block_indices, &P::full_block_indices>{
          "full_block_indices", full_slots},
      Field<T, &D::partial_block_counts, &C::partial_block_counts, &A::partial_block_counts, &B::partial_block_counts>{
          "partial_block_counts", has_partial},
      Field<T, &D::partial_block_indices, &C::partial_block_indices, &A::partial_block_indices, &B::partial_block_indices,
            &P::partial_block_indices>{"partial_block_indices", partial_slots},
      Field<T, &D::partial_block_bits, &C::partial_block_bits, &A::partial_block_bits, &B::partial_block_bits>{"partial_block_bits",
                                                                                                               partial_slots},
      Field<T, &D::block_q, &C::block_q>{"block_q"},
      Field<T, &D::block_k, &C::block_k>{"block_k"},
      Field<T, &D::alibi_slopes, &C::alibi_slopes, &A::alibi_slopes, &B::alibi_slopes, &P::has_alibi_slopes>{"alibi_slopes", any_q},
      Field<T, &D::bias, &C::bias, &A::bias, &B::bias, &P::has_bias>{"bias", any_pair, kIts<&P::bias_alignment>},
      Field<T, &D::dropout_p, &C::dropout_p, &P::dropout_p>{"dropout_p"},
      Field<T, &A::dropout_state, &B::dropout_state>{.name = "dropout_state", .needed = drops, .count = two, .may_be_absent = true},
      Field<T, &D::packed_mask, &C::packed_mask, &A::packed_mask, &B::packed_mask, &P::packed_mask>{"packed_mask", any_bit},
      Field<T, &A::mask_indptr, &B::mask_indptr>{.name = "mask_indptr", .needed = segments, .count = batch_and_one, .may_be_absent = true},
  };
}();

inline constexpr auto kAttentionFields = [] {
  using P = AttentionProblem;
  using D = AttentionDesc;
  using A = AttentionArgs;
  using C = fovea_attention_desc;
  using B = fovea_attention_args;
  using T = FieldTypes<P, D, A, C, B>;
  constexpr auto kv_heads = [](const D& d) { return extent_from_last(d.k, 2); };
  constexpr auto batch = [](const D& d) { return d.ragged ? d.ragged->batch : d.q.shape[0]; };
  return std::tuple_cat(
      kDenseFields,
      std::tuple{
          Field<T, &D::q_scale, &C::q_scale, &A::q_scale, &B::q_scale, &P::q_scale>{.name = "q_scale", .count = kv_heads, .batch = batch},
          Field<T, &D::k_scale, &C::k_scale, &A::k_scale, &B::k_scale, &P::k_scale>{.name = "k_scale", .count = kv_heads, .batch = batch},
          Field<T, &D::v_scale, &C::v_scale, &A::v_scale, &B::v_scale, &P::v_scale>{.name = "v_scale", .count = kv_heads, .batch = batch},
      });
}();
static_assert(names_every_pointer<AttentionArgs>(kAttentionFields));

inline constexpr auto kAttentionOptions = options_of<kAttentionFields>(option::kExactRows<AttentionProblem>);

}  // namespace fovea::detail
