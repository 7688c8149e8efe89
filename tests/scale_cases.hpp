// SPDX-License-Identifier: Apache-2.0
/// Scales of e4m3 rows: how many there are, their signs, and NaN beside rows that see no key.
#pragma once

#include "case_parts.hpp"

namespace fovea::check {

inline void attention_scales(Table& table) {
  constexpr std::pair<const char*, Scales> kScales[] = {
      {"none", Scales::none}, {"one", Scales::one_value}, {"negative", Scales::negative}, {"per-head", Scales::per_head}};
  for (const auto& [name, scales] : kScales)
    for (const DType out : {DType::bf16, DType::f32}) {
      Case spec = attention(DType::e4m3, {{40, 66}, {40, 66}}, causal());
      spec.scales = scales;
      spec.out_dtype = out;
      add(table, fmt::format("scales/{}-out-{}", name, name_of(out)), spec, Tier::quick);
      // One weight of one: rounding of P must not show in f32.
      spec.sequences = {{40, 1}, {40, 1}};
      add(table, fmt::format("scales/{}-out-{}-one-key", name, name_of(out)), with_mask(spec, {}), Tier::quick);
      spec.sequences = {{40, 200}, {40, 200}};
      spec.values = Values::dominant_key;
      add(table, fmt::format("scales/{}-out-{}-dominant-key", name, name_of(out)), with_mask(spec, {}), Tier::quick);
    }
  // Rows that see no key, beside others, where a scale is NaN.
  for (const Case& seen : {attention(DType::e4m3, {{80, 40}}, causal()), attention(DType::e4m3, {{200, 70}}, sliding_window(9))}) {
    Case spec = with_heads(seen, 4, 2);
    spec.scales = Scales::per_head;
    spec.nan_scale = true;
    const char* mask = seen.mask.left == kUnbounded ? "causal" : "window";
    add(table, fmt::format("scales/per-head-nan-{}", mask), spec, Tier::quick);
    spec.softcap = 20;
    add(table, fmt::format("scales/per-head-nan-softcap-{}", mask), spec, Tier::quick);
  }
}

inline void paged_scales(Table& table) {
  for (const auto& [name, scales] : {std::pair{"none", Scales::none}, {"one", Scales::one_value}}) {
    Case spec = paged(DType::bf16, DType::e4m3, {{1, 75}, {34, 75}});
    spec.scales = scales;
    add(table, fmt::format("scales/{}", name), spec, Tier::quick);
  }
  Case nan = with_heads(paged(DType::bf16, DType::e4m3, {{1, 75}, {34, 20}, {3, 0}}), 4, 2);
  nan.nan_scale = true;
  add(table, "scales/bf16-on-e4m3-nan", nan, Tier::quick);
}

/// `add` takes a name, and a LatentCase.
template <class Add>
void latent_scales(Add&& add) {
  add("scale/bf16-negative", {.sequences = {{1, 100}}, .scale = -0.07f});
  add("scale/bf16-on-e4m3", {.rows = DType::e4m3, .sequences = {{1, 129}, {1, 8}}, .has_scale = true});
  add("scale/f16-on-e4m3-h4", {.dtype = DType::f16, .rows = DType::e4m3, .head = 4, .sequences = {{1, 129}}, .has_scale = true});
  // Some rows see no key.
  add("scale/bf16-on-e4m3-nan", {.rows = DType::e4m3, .sequences = {{3, 129}, {3, 2}, {3, 0}}, .has_scale = true, .nan_scale = true});
  add("scale/f16-on-e4m3-h4-nan",
      {.dtype = DType::f16, .rows = DType::e4m3, .head = 4, .sequences = {{3, 40}, {3, 1}}, .has_scale = true, .nan_scale = true});
  add("scale/bf16-on-e4m3-nan-splits",
      {.rows = DType::e4m3, .head = 4, .sequences = {{2, 9000}, {2, 1}}, .has_scale = true, .nan_scale = true});
  add("scale/bf16-on-e4m3-none", {.rows = DType::e4m3, .row = 512, .sequences = {{1, 33}}});
}

}  // namespace fovea::check
