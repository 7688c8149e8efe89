// SPDX-License-Identifier: Apache-2.0
/// The fields of the indexer's scores, in the order of torch's schema.
#pragma once

#include "fovea/c_indexer.h"
#include "fovea/indexer.hpp"
#include "op/common/fields.hpp"
#include "op/index_logits/problem.hpp"

namespace fovea::detail {

inline constexpr auto kIndexLogitsFields = [] {
  using P = IndexLogitsProblem;
  using D = IndexLogitsDesc;
  using A = IndexLogitsArgs;
  using C = fovea_index_logits_desc;
  using B = fovea_index_logits_args;
  using T = FieldTypes<P, D, A, C, B>;
  constexpr auto any = [](const P& p) { return p.rows * p.columns > 0; };
  constexpr auto any_q = [](const P& p) { return p.rows * p.columns > 0 && p.heads > 0; };
  constexpr auto any_k = [](const P& p) { return p.rows * p.columns > 0 && p.blocks > 0; };
  constexpr auto any_block = [](const P& p) { return p.rows * p.columns > 0 && p.max_blocks > 0; };
  constexpr auto rows = [](const D& d) { return d.q.shape[0]; };
  constexpr auto batch = [](const D& d) { return d.block_table ? d.block_table->shape[0] : 0; };
  return std::tuple{
      Field<T, &D::q, &C::q, &A::q, &B::q>{"q", any_q, kIts<&P::q_base_alignment>},
      Field<T, &D::k, &C::k, &A::k, &B::k>{"k", any_k, kIts<&P::k_base_alignment>},
      Field<T, &D::k_scale, &C::k_scale, &A::k_scale, &B::k_scale>{"k_scale", any_k},
      Field<T, &D::weights, &C::weights, &A::weights, &B::weights>{"weights", any_q},
      Field<T, &D::out, &C::out, &A::out, &B::out>{"out", any, kIts<&P::out_base_alignment>},
      Field<T, &D::has_first, &C::has_first, &A::first, &B::first, &P::has_first>{.name = "first", .needed = any, .count = rows},
      Field<T, &D::has_last, &C::has_last, &A::last, &B::last, &P::has_last>{.name = "last", .needed = any, .count = rows},
      Field<T, &D::block_table, &C::block_table, &A::block_table, &B::block_table, &P::paged>{"block_table", any_block},
      Field<T, &D::has_kv_len, &C::has_kv_len, &A::kv_len, &B::kv_len, &P::has_kv_len>{.name = "kv_len", .needed = any, .count = batch},
      Field<T, &D::keep_outside, &C::keep_outside, &P::keep_outside>{"keep_outside"},
  };
}();
static_assert(names_every_pointer<IndexLogitsArgs>(kIndexLogitsFields));

}  // namespace fovea::detail
