// SPDX-License-Identifier: Apache-2.0
/// The part of tests/cases.hpp on dense attention over many tiles, whose widths GPU kernels choose by head dim.
#pragma once

#include "case_parts.hpp"

namespace fovea::check {

/// Many tiles of queries and keys, with ends inside of them; two queries to a cluster where nothing is masked.
inline void attention_tiles(Table& table) {
  constexpr Pair kTiled[] = {{64, 64}, {96, 96}, {128, 128}, {192, 128}, {192, 192}, {256, 256}};
  for (const auto [dqk, dv] : kTiled) {
    const auto add_tiled = [&](const char* name, Case spec) {
      add(table, fmt::format("tiles/{}-{}x{}-{}", name_of(spec.dtype), dqk, dv, name), with_heads(with_dims(spec, dqk, dv), 2, 1));
    };
    add_tiled("full", attention(DType::bf16, {{600, 700}, {600, 700}}));
    add_tiled("causal", attention(DType::bf16, {{577, 640}}, causal()));
    add_tiled("window", attention(DType::bf16, {{450, 800}}, {.left = 150, .right = 40}));
    add_tiled("full", attention(DType::f16, {{513, 385}}));
  }
  // Tiles of columns past one of the head dims; clusters whose second tile has neither queries nor keys.
  constexpr Pair kUneven[] = {{64, 128}, {128, 64}, {40, 112}, {192, 64}, {256, 64}};
  for (const auto [dqk, dv] : kUneven) {
    const Case spec = with_heads(with_dims(attention(DType::bf16, {{513, 130}}), dqk, dv), 2, 1);
    add(table, fmt::format("tiles/bf16-{}x{}-uneven", dqk, dv), spec, Tier::quick);
  }
  for (const std::int64_t n : {159, 160, 161, 175, 176, 177, 383, 384})
    add(table, fmt::format("tiles/bf16-{}-causal", n), with_heads(with_dims(attention(DType::bf16, {{n, n}}, causal()), 128, 128), 2, 2));
  for (const auto& [name, values] : {std::pair{"nan-value", Values::nan_value}, {"nan-key", Values::nan_key}}) {
    Case spec = with_heads(with_dims(attention(DType::bf16, {{300, 300}}, causal()), 128, 128), 2, 1);
    spec.values = values;
    add(table, fmt::format("tiles/bf16-{}", name), spec);
    spec.mask = {.left = 100};
    add(table, fmt::format("tiles/bf16-{}-window", name), spec);
  }
  Case capped = with_dims(attention(DType::bf16, {{70, 190}}, causal()), 128, 128);
  capped.values = Values::huge_scores;
  capped.softcap = 4000;
  add(table, "tiles/bf16-softcap4000", capped);
  const Case few = with_heads(with_dims(attention(DType::bf16, {{3, 3000}}, causal()), 128, 128), 8, 2);
  add(table, "tiles/bf16-few-queries", few, Tier::quick);
  add(table, "tiles/bf16-few-queries-nan-value", [&] {
    Case spec = few;
    spec.values = Values::nan_value;
    return spec;
  }());
}

}  // namespace fovea::check
