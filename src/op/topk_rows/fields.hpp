// SPDX-License-Identifier: Apache-2.0
/// The fields of listing the largest of each row, in the order of torch's schema.
#pragma once

#include "fovea/c_indexer.h"
#include "fovea/indexer.hpp"
#include "op/common/fields.hpp"
#include "op/topk_rows/problem.hpp"

namespace fovea::detail {

inline constexpr auto kTopkRowsFields = [] {
  using P = TopkRowsProblem;
  using D = TopkRowsDesc;
  using A = TopkRowsArgs;
  using C = fovea_topk_rows_desc;
  using B = fovea_topk_rows_args;
  using T = FieldTypes<P, D, A, C, B>;
  constexpr auto any = [](const P& p) { return p.rows * p.k > 0; };
  constexpr auto any_logit = [](const P& p) { return p.rows * p.k > 0 && p.columns > 0; };
  constexpr auto any_block = [](const P& p) { return p.rows * p.k > 0 && p.max_blocks > 0; };
  constexpr auto rows = [](const D& d) { return d.logits.shape[0]; };
  return std::tuple{
      Field<T, &D::logits, &C::logits, &A::logits, &B::logits>{"logits", any_logit, kIts<&P::base_alignment>},
      Field<T, &D::out, &C::out, &A::out, &B::out>{"out", any},
      Field<T, &D::has_first, &C::has_first, &A::first, &B::first, &P::has_first>{.name = "first", .needed = any, .count = rows},
      Field<T, &D::has_last, &C::has_last, &A::last, &B::last, &P::has_last>{.name = "last", .needed = any, .count = rows},
      Field<T, &D::has_offset, &C::has_offset, &A::offset, &B::offset, &P::has_offset>{.name = "offset", .needed = any, .count = rows},
      Field<T, &D::block_table, &C::block_table, &A::block_table, &B::block_table, &P::has_block_table>{"block_table", any_block},
      Field<T, &D::page, &C::page>{"page"},
      Field<T, &D::sorted, &C::sorted, &P::sorted>{"sorted"},
  };
}();
static_assert(names_every_pointer<TopkRowsArgs>(kTopkRowsFields));

}  // namespace fovea::detail
