// SPDX-License-Identifier: Apache-2.0
/// The fields of paged attention, in the order of torch's schema.
#pragma once

#include "fovea/paged_attention.hpp"
#include "op/common/fields.hpp"
#include "op/paged_attention/problem.hpp"

namespace fovea::detail {

inline constexpr auto kPagedAttentionFields = [] {
  using P = PagedAttentionProblem;
  using D = PagedAttentionDesc;
  using A = PagedAttentionArgs;
  using C = fovea_paged_attention_desc;
  using B = fovea_paged_attention_args;
  using T = FieldTypes<P, D, A, C, B>;
  constexpr auto any_q = [](const P& p) { return p.total_q > 0; };
  constexpr auto any_k = [](const P& p) { return p.blocks > 0 && p.max_blocks > 0; };
  constexpr auto any_block = [](const P& p) { return p.batch > 0 && p.max_blocks > 0; };
  constexpr auto any_sequence = [](const P& p) { return p.batch > 0; };
  constexpr auto heads = [](const D& d) { return d.q.shape[1]; };
  constexpr auto kv_heads = [](const D& d) { return d.k_cache.shape[2]; };
  constexpr auto batch = [](const D& d) { return d.block_table.shape[0]; };
  constexpr auto batch_and_one = [](const D& d) { return d.block_table.shape[0] + 1; };
  constexpr auto any_bit = [](const P& p) { return p.total_q > 0 && p.packed_mask->bytes > 0; };
  constexpr auto segments = [](const P& p) { return p.packed_mask && p.packed_mask->row_bytes == 0 && p.batch > 1; };
  return std::tuple{
      Field<T, &D::q, &C::q, &A::q, &B::q>{.name = "q", .needed = any_q, .alignment = kIts<&P::q_base_alignment>},
      Field<T, &D::k_cache, &C::k_cache, &A::k_cache, &B::k_cache>{
          .name = "k_cache", .needed = any_k, .alignment = kIts<&P::k_base_alignment>, .format = kIts<&D::k_format>},
      Field<T, &D::v_cache, &C::v_cache, &A::v_cache, &B::v_cache>{
          .name = "v_cache", .needed = any_k, .alignment = kIts<&P::v_base_alignment>, .format = kIts<&D::v_format>},
      Field<T, &D::block_table, &C::block_table, &A::block_table, &B::block_table>{"block_table", any_block},
      Field<T, &A::cu_seqlens_q, &B::cu_seqlens_q>{.name = "cu_seqlens_q", .count = batch_and_one, .may_be_absent = true},
      Field<T, &A::kv_len, &B::kv_len>{.name = "kv_len", .needed = any_sequence, .count = batch},
      Field<T, &D::out, &C::out, &A::out, &B::out>{"out", any_q, kIts<&P::out_base_alignment>},
      Field<T, &D::lse, &C::lse, &A::lse, &B::lse, &P::has_lse>{"lse", any_q},
      Field<T, &D::max_seq_q, &C::max_seq_q>{"max_seqlen_q"},
      Field<T, &D::max_kv_len, &C::max_kv_len>{"max_kv_len"},
      Field<T, &D::mask, &C::mask, &P::mask>{"mask"},
      Field<T, &D::scale, &C::scale>{"scale"},
      Field<T, &D::softcap, &C::softcap, &P::softcap>{"softcap"},
      Field<T, &D::has_sink, &C::has_sink, &A::sink, &B::sink, &P::has_sink>{.name = "sink", .needed = any_q, .count = heads},
      Field<T, &D::k_scale, &C::k_scale, &A::k_scale, &B::k_scale, &P::k_scale>{.name = "k_scale", .count = kv_heads},
      Field<T, &D::v_scale, &C::v_scale, &A::v_scale, &B::v_scale, &P::v_scale>{.name = "v_scale", .count = kv_heads},
      Field<T, &D::packed_mask, &C::packed_mask, &A::packed_mask, &B::packed_mask, &P::packed_mask>{"packed_mask", any_bit},
      Field<T, &A::mask_indptr, &B::mask_indptr>{.name = "mask_indptr", .needed = segments, .count = batch_and_one, .may_be_absent = true},
      Field<T, &D::k_format, &C::k_format, &P::k_format>{"k_format"},
      Field<T, &D::v_format, &C::v_format, &P::v_format>{"v_format"},
      Field<T, &D::k_scale_cache, &C::k_scale_cache, &A::k_scale_cache, &B::k_scale_cache, &P::k_scale_cache>{
          .name = "k_scale_cache",
          .needed = any_k,
          .alignment = [](const P& p) { return base_alignment(p.k_scale_cache.value_or(TensorDesc{})); },
          .format = kIts<&D::k_format>},
      Field<T, &D::v_scale_cache, &C::v_scale_cache, &A::v_scale_cache, &B::v_scale_cache, &P::v_scale_cache>{
          .name = "v_scale_cache",
          .needed = any_k,
          .alignment = [](const P& p) { return base_alignment(p.v_scale_cache.value_or(TensorDesc{})); },
          .format = kIts<&D::v_format>},
  };
}();
static_assert(names_every_pointer<PagedAttentionArgs>(kPagedAttentionFields));

inline constexpr auto kPagedAttentionOptions = options_of<kPagedAttentionFields>(option::kExactRows<PagedAttentionProblem>);

}  // namespace fovea::detail
