// SPDX-License-Identifier: Apache-2.0
/// The cases of ALiBi, biases and dropout.
#pragma once

#include "case_parts.hpp"

namespace fovea::check {

/// ALiBi alone: tiles on both sides of the diagonals and across them, slopes of every kind, lengths that differ.
inline void attention_alibi(Table& table) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const auto name = name_of(dtype);
    const auto put = [&](std::string_view variant, Case spec) {
      spec.alibi = true;
      add(table, fmt::format("score_bias/{}-alibi-{}", name, variant), std::move(spec), dtype == DType::bf16 ? Tier::quick : Tier::full);
    };
    const auto put_masks = [&](std::string_view variant, const Case& spec) {
      put(fmt::format("{}-full", variant), spec);
      put(fmt::format("{}-causal", variant), with_mask(spec, causal()));
    };
    const Case square = with_heads(attention(dtype, {{450, 450}}), 5, 5);
    Case wild = square;
    wild.wild_slopes = true;
    put_masks("square", square);
    put_masks("wild", wild);
    put("wild-window", with_mask(wild, {.left = 130, .right = 70}));
    for (const auto [dqk, dv] : {Pair{40, 24}, {96, 96}, {128, 128}, {192, 128}, {256, 256}})
      put_masks(fmt::format("{}x{}", dqk, dv), with_dims(square, dqk, dv));
    put_masks("long-keys", with_heads(attention(dtype, {{100, 700}, {100, 700}}), 4, 2));
    put_masks("long-queries", attention(dtype, {{300, 90}}));
    put("long-keys-top-left", attention(dtype, {{100, 700}}, causal(Anchor::top_left)));
    put("splits", with_heads(attention(dtype, {{70, 4100}}), 2, 2));
    put("decode", with_heads(attention(dtype, {{1, 2100}}), 3, 3));
    put("packed-decode", with_heads(attention(dtype, {{1, 2100}}), 8, 2));
    Case other = wild;
    other.softcap = 5;
    put("softcap", other);
    other.softcap = 0;
    other.scale = -0.1f;
    put("negative-scale", other);
    Case several = ragged(dtype, {{5, 5}, {0, 9}, {264, 264}, {1, 330}, {33, 0}, {17, 649}, {400, 210}, {1, 1}});
    several.padding_rows = 6;
    several.sink = Sink::finite;
    put_masks("ragged", several);
    several.wild_slopes = true;
    put_masks("ragged-wild", with_dims(several, 128, 128));
    for (const auto& [values_name, values] : {std::pair{"ascending", Values::ascending},
                                              {"descending", Values::descending},
                                              {"very-negative", Values::very_negative},
                                              {"dominant-key", Values::dominant_key}}) {
      Case spec = square;
      spec.values = values;
      put(values_name, spec);
    }
    Case broken = with_mask(square, causal());
    broken.values = Values::nan_key;
    put("nan-key", broken);
    broken.values = Values::nan_value;
    put("nan-value", broken);
  }
}

/// ALiBi, biases and dropout.
inline void attention_score_bias(Table& table) {
  attention_alibi(table);
  constexpr std::pair<const char*, BiasShape> kShapes[] = {{"full", BiasShape::full},
                                                           {"heads", BiasShape::heads},
                                                           {"rows", BiasShape::rows},
                                                           {"keys", BiasShape::keys},
                                                           {"transposed", BiasShape::transposed}};
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const auto name = name_of(dtype);
    const Tier tier = dtype == DType::bf16 ? Tier::quick : Tier::full;
    const auto put = [&](const char* variant, Case spec) {
      add(table, fmt::format("score_bias/{}-{}", name, variant), std::move(spec), tier);
    };
    const Case base = attention(dtype, {{75, 140}, {75, 140}}, causal());
    for (const auto& [mask_name, mask] : {std::pair{"full", BandMask{}},
                                          {"causal", causal()},
                                          {"top-left", causal(Anchor::top_left)},
                                          {"window", BandMask{.left = 20, .right = 11}}}) {
      Case spec = with_mask(base, mask);
      spec.alibi = true;
      put(fmt::format("alibi-{}", mask_name).c_str(), spec);
      spec.alibi = false;
      spec.dropout = 0.3;
      put(fmt::format("dropout-{}", mask_name).c_str(), spec);
    }
    for (const auto& [shape_name, shape] : kShapes) {
      Case spec = base;
      spec.bias = shape;
      put(fmt::format("bias-{}", shape_name).c_str(), spec);
      spec.mask = {};
      spec.softcap = 5;
      put(fmt::format("bias-{}-softcap", shape_name).c_str(), spec);
    }
    Case all = ragged(dtype, {{5, 5}, {0, 9}, {64, 64}, {1, 330}, {33, 0}, {17, 49}, {1, 1}}, causal());
    all.padding_rows = 6;
    all.alibi = true;
    all.bias = BiasShape::full;
    all.dropout = 0.2;
    all.sink = Sink::finite;
    put("all-ragged", all);
    for (const auto [dqk, dv] : {Pair{8, 8}, {128, 128}, {192, 128}, {256, 256}, {512, 512}})
      put(fmt::format("all-{}x{}", dqk, dv).c_str(), with_dims(all, dqk, dv));
    Case decode = attention(dtype, {{1, 2100}, {1, 2100}});
    decode.alibi = true;
    decode.bias = BiasShape::keys;
    decode.dropout = 0.5;
    put("all-decode", with_heads(decode, 8, 2));
    Case broken = base;
    broken.alibi = true;
    broken.bias = BiasShape::full;
    broken.values = Values::nan_key;
    put("nan-key", broken);
    broken.bias = BiasShape::heads;
    broken.values = Values::nan_value;
    put("nan-value", broken);
  }
}

}  // namespace fovea::check
