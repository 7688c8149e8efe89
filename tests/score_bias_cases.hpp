// SPDX-License-Identifier: Apache-2.0
/// The cases of ALiBi, biases and dropout.
#pragma once

#include "case_parts.hpp"

namespace fovea::check {

/// ALiBi, biases and dropout.
inline void attention_score_bias(Table& table) {
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
