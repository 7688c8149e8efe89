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
  constexpr auto into_k_scales = [](const P& p) { return p.tokens > 0 && p.blocks > 0 && p.k.head_dim > 0 && p.k.scale_cache.has_value(); };
  constexpr auto into_v_scales = [](const P& p) { return p.tokens > 0 && p.blocks > 0 && p.v.head_dim > 0 && p.v.scale_cache.has_value(); };
  constexpr auto k_alignment = [](const P& p) { return p.k.cache_alignment; };
  constexpr auto v_alignment = [](const P& p) { return p.v.cache_alignment; };
  constexpr auto k_scales_alignment = [](const P& p) { return base_alignment(p.k.scale_cache.value_or(TensorDesc{})); };
  constexpr auto v_scales_alignment = [](const P& p) { return base_alignment(p.v.scale_cache.value_or(TensorDesc{})); };
  constexpr auto tokens = [](const D& d) { return d.k.shape[0]; };
  constexpr auto kv_heads = [](const D& d) { return d.k_cache.shape[2]; };
  return std::tuple{
      Field<T, &D::k, &C::k, &A::k, &B::k>{"k", any_k, [](const P& p) { return p.k.rows_alignment; }},
      Field<T, &D::v, &C::v, &A::v, &B::v>{"v", any_v, [](const P& p) { return p.v.rows_alignment; }},
      Field<T, &D::k_cache, &C::k_cache, &A::k_cache, &B::k_cache>{
          .name = "k_cache", .needed = into_k, .alignment = k_alignment, .format = kIts<&D::k_format>},
      Field<T, &D::v_cache, &C::v_cache, &A::v_cache, &B::v_cache>{
          .name = "v_cache", .needed = into_v, .alignment = v_alignment, .format = kIts<&D::v_format>},
      Field<T, &A::slot_mapping, &B::slot_mapping>{.name = "slot_mapping", .needed = any, .count = tokens},
      Field<T, &D::k_scale, &C::k_scale, &A::k_scale, &B::k_scale>{.name = "k_scale", .needed = k_scaled, .count = kv_heads},
      Field<T, &D::v_scale, &C::v_scale, &A::v_scale, &B::v_scale>{.name = "v_scale", .needed = v_scaled, .count = kv_heads},
      Field<T, &D::k_format, &C::k_format>{"k_format"},
      Field<T, &D::v_format, &C::v_format>{"v_format"},
      Field<T, &D::k_scale_cache, &C::k_scale_cache, &A::k_scale_cache, &B::k_scale_cache>{
          .name = "k_scale_cache", .needed = into_k_scales, .alignment = k_scales_alignment, .format = kIts<&D::k_format>},
      Field<T, &D::v_scale_cache, &C::v_scale_cache, &A::v_scale_cache, &B::v_scale_cache>{
          .name = "v_scale_cache", .needed = into_v_scales, .alignment = v_scales_alignment, .format = kIts<&D::v_format>},
  };
}();
static_assert(names_every_pointer<PagedCacheAppendArgs>(kPagedCacheAppendFields));

}  // namespace fovea::detail
