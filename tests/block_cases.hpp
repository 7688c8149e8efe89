// SPDX-License-Identifier: Apache-2.0
/// The part of the case table with block masks.
#pragma once

#include "case_parts.hpp"

namespace fovea::check {

inline Case with_blocks(Case spec, Blocks blocks) {
  spec.blocks = blocks;
  return spec;
}

/// Kinds of lists, sizes of blocks, ends of sequences, bands beside the lists, and inputs that no hidden key may spoil.
inline void attention_blocks(Table& table) {
  constexpr std::pair<const char*, Blocks> kLists[] = {
      {"both", {.q = 128, .k = 128}},
      {"full", {.q = 128, .k = 128, .partial = false}},
      {"partial", {.q = 128, .k = 128, .full = false, .own_head = false}},
      {"64", {.q = 64, .k = 64, .own_batch = true, .own_head = false}},
      {"64x128", {.q = 64, .k = 128}},
      {"128x64", {.q = 128, .k = 64, .own_batch = true}},
      {"256x384", {.q = 256, .k = 384}},
      {"16x32", {.q = 16, .k = 32}},
  };
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const auto name = name_of(dtype);
    const Tier tier = dtype == DType::bf16 ? Tier::quick : Tier::full;
    for (const auto& [list_name, blocks] : kLists)
      for (const auto& [dims_name, dim] : {std::pair{"d64", 64}, {"d128", 128}}) {
        const Case spec = with_dims(attention(dtype, {{330, 700}, {330, 700}}), dim, dim);
        add(table, fmt::format("blocks/{}-{}-{}", name, list_name, dims_name), with_blocks(spec, blocks), tier);
      }
    const Case base = with_blocks(with_dims(attention(dtype, {{400, 400}}), 128, 128), {.q = 128, .k = 128});
    for (const Sequence s : {Sequence{1, 1}, {1, 300}, {127, 129}, {128, 128}, {129, 127}, {257, 1}, {300, 0}, {0, 300}}) {
      Case spec = base;
      spec.sequences = {s, s};
      add(table, fmt::format("blocks/{}-{}x{}", name, s.q, s.kv), spec, tier);
    }
    add(table, fmt::format("blocks/{}-causal", name), with_mask(base, causal()), tier);
    add(table, fmt::format("blocks/{}-window", name), with_mask(base, sliding_window(150)), tier);
    add(table, fmt::format("blocks/{}-96x80", name), with_dims(base, 96, 80));
    add(table, fmt::format("blocks/{}-gqa", name), with_heads(base, 8, 2));
    for (const auto& [values_name, values, softcap] : kValues) {
      Case spec = base;
      spec.values = values;
      spec.softcap = softcap;
      add(table, fmt::format("blocks/{}-values-{}", name, values_name), spec);
    }
    for (const auto& [sink_name, sink] : kSinks) {
      Case spec = base;
      spec.sink = sink;
      add(table, fmt::format("blocks/{}-sink-{}", name, sink_name), spec);
    }
    for (const auto& [layout_name, layout] : kLayouts) {
      if (layout == Layout::interleaved || layout == Layout::far) continue;
      Case spec = base;
      spec.sequences = {{200, 300}, {200, 300}};
      spec.layout = layout;
      add(table, fmt::format("blocks/{}-layout-{}", name, layout_name), spec);
    }
    Case quiet = base;
    quiet.lse = false;
    quiet.scale = -0.3f;
    add(table, fmt::format("blocks/{}-no-lse-negative-scale", name), quiet);
  }
}

}  // namespace fovea::check
