// SPDX-License-Identifier: Apache-2.0
/// The fields of appending to a paged cache, in the order of torch's schema.
#pragma once

#include "fovea/paged_attention.hpp"
#include "op/common/fields.hpp"
#include "op/paged_cache_append/problem.hpp"

namespace fovea::detail {

inline constexpr auto kPagedCacheAppendFields = [] {
  using P = PagedCacheAppendProblem;
  using D = PagedCacheAppendDesc;
  using A = PagedCacheAppendArgs;
  using C = fovea_paged_cache_append_desc;
  using B = fovea_paged_cache_append_args;
  using T = FieldTypes<P, D, A, C, B>;
  constexpr auto any = [](const P& p) { return p.tokens > 0; };
  constexpr auto any_k = [](const P& p) { return p.tokens > 0 && p.kv_heads * p.k.head_dim > 0; };  // K alone may be appended
  constexpr auto any_v = [](const P& p) { return p.tokens > 0 && p.kv_heads * p.v.head_dim > 0; };
  constexpr auto into_k = [](const P& p) { return p.tokens > 0 && p.kv_heads * p.k.head_dim > 0 && p.blocks > 0; };
  constexpr auto into_v = [](const P& p) { return p.tokens > 0 && p.kv_heads * p.v.head_dim > 0 && p.blocks > 0; };
  constexpr auto k_scaled = [](const P& p) { return p.k.scale.has_value(); };
  constexpr auto v_scaled = [](const P& p) { return p.v.scale.has_value(); };
  constexpr auto tokens = [](const D& d) { return d.k.shape[0]; };
  constexpr auto kv_heads = [](const D& d) { return d.k_cache.shape[2]; };
  return std::tuple{
      Field<T, &D::k, &C::k, &A::k, &B::k>{"k", any_k, [](const P& p) { return p.k.rows_alignment; }},
      Field<T, &D::v, &C::v, &A::v, &B::v>{"v", any_v, [](const P& p) { return p.v.rows_alignment; }},
      Field<T, &D::k_cache, &C::k_cache, &A::k_cache, &B::k_cache>{"k_cache", into_k, [](const P& p) { return p.k.cache_alignment; }},
      Field<T, &D::v_cache, &C::v_cache, &A::v_cache, &B::v_cache>{"v_cache", into_v, [](const P& p) { return p.v.cache_alignment; }},
      Field<T, &A::slot_mapping, &B::slot_mapping>{.name = "slot_mapping", .needed = any, .count = tokens},
      Field<T, &D::k_scale, &C::k_scale, &A::k_scale, &B::k_scale>{.name = "k_scale", .needed = k_scaled, .count = kv_heads},
      Field<T, &D::v_scale, &C::v_scale, &A::v_scale, &B::v_scale>{.name = "v_scale", .needed = v_scaled, .count = kv_heads},
  };
}();
static_assert(names_every_pointer<PagedCacheAppendArgs>(kPagedCacheAppendFields));

}  // namespace fovea::detail
