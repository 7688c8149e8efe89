// SPDX-License-Identifier: Apache-2.0
/// Head dims past 256, which few entries take: every option that such entries have, over small
/// shapes.
#pragma once

#include "case_parts.hpp"

namespace fovea::check {

inline constexpr Pair kWideHeadDims[] = {{264, 264}, {320, 320}, {384, 384}, {512, 512}, {512, 64}, {72, 512}, {504, 328}};

inline void wide_attention(Table& table) {
  const auto put = [&](std::string variant, const Case& spec, Tier tier = Tier::full) {
    add(table, fmt::format("wide/{}-{}", name_of(spec.dtype), variant), spec, tier);
  };
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const auto of = [&](std::vector<Sequence> sequences, BandMask mask = {}) {
      return with_dims(attention(dtype, std::move(sequences), mask), 512, 512);
    };
    for (const auto [dqk, dv] : kWideHeadDims)
      put(fmt::format("{}x{}", dqk, dv), with_dims(of({{33, 150}, {33, 150}}, causal()), dqk, dv), Tier::quick);
    put("tiles-full", of({{130, 200}}));
    put("tiles-causal", with_heads(of({{257, 257}}, causal()), 4, 2));
    put("few-queries", with_heads(of({{2, 1500}}, causal()), 16, 2));
    put("one-query", with_heads(of({{1, 70}, {1, 70}}), 8, 1));
    put("no-keys", of({{5, 0}}));
  }
  const Case base = with_dims(attention(DType::bf16, {{90, 150}}, causal()), 512, 512);
  for (const auto& [name, mask] : kMasks) put(fmt::format("mask-{}", name), with_heads(with_mask(base, mask), 2, 1), Tier::quick);
  for (const auto& [name, values, softcap] : kValues) {
    Case spec = base;
    spec.values = values;
    spec.softcap = softcap;
    put(fmt::format("values-{}", name), spec);
  }
  for (const auto& [name, sink] : kSinks) {
    Case spec = base;
    spec.sink = sink;
    put(fmt::format("sink-{}", name), spec);
    spec.sequences = {{2, 1500}};
    put(fmt::format("sink-{}-few-queries", name), spec);
  }
  for (const auto& [name, layout] : kLayouts) {
    if (layout == Layout::interleaved || layout == Layout::far) continue;
    Case spec = with_dims(attention(DType::bf16, {{34, 75}, {34, 75}}, causal()), 512, 320);
    spec.layout = layout;
    put(fmt::format("layout-{}", name), spec);
  }
  Case mixed = with_dims(ragged(DType::bf16, {{5, 5}, {0, 9}, {64, 64}, {1, 130}, {33, 0}, {97, 149}, {1, 1}}, causal()), 512, 512);
  mixed.padding_rows = 6;
  put("ragged", mixed, Tier::quick);
  put("ragged-window", with_mask(mixed, sliding_window(20)));
  mixed.sequences = {{33, 150}, {0, 9}, {64, 130}};
  mixed.values = Values::nan_tail;
  put("ragged-nan-tail", with_mask(mixed, causal(Anchor::top_left)));
  put("e4m3", with_dims(attention(DType::e4m3, {{33, 150}}, causal()), 512, 512));
}

inline void wide_paged(Table& table) {
  const auto put = [&](std::string variant, const Case& spec, Tier tier = Tier::full) {
    add(table, fmt::format("wide/{}-{}", name_of(spec.dtype), variant), spec, tier);
  };
  const std::vector<Sequence> lengths{{1, 150}, {20, 20}, {0, 5}, {97, 233}, {1, 0}, {1, 1}, {5, 3}};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Case base = with_dims(paged(dtype, dtype, lengths), 512, 512);
    for (const auto [dqk, dv] : kWideHeadDims) put(fmt::format("{}x{}", dqk, dv), with_dims(base, dqk, dv), Tier::quick);
    for (const std::int64_t page : {1, 3, 16, 128}) {
      Case spec = with_heads(base, 8, 2);
      spec.page = page;
      put(fmt::format("page{}", page), spec);
    }
    put("split", with_heads(with_dims(paged(dtype, dtype, {{1, 3000}, {2, 40}, {1, 700}}), 512, 512), 16, 2));
  }
  const Case base = with_heads(with_dims(paged(DType::bf16, DType::bf16, lengths), 512, 512), 6, 2);
  put("window", with_mask(base, sliding_window(40)));
  for (const auto& [name, values, softcap] : kValues) {
    Case spec = base;
    spec.values = values;
    spec.softcap = softcap;
    put(fmt::format("values-{}", name), spec);
  }
  for (const auto& [name, sink] : kSinks) {
    Case spec = base;
    spec.sink = sink;
    put(fmt::format("sink-{}", name), spec);
  }
  for (const auto& [name, layout] : kLayouts) {
    if (layout == Layout::far) continue;
    Case spec = with_dims(base, 512, 320);
    spec.layout = layout;
    put(fmt::format("layout-{}", name), spec);
  }
  const Case behind =
      with_mask(with_dims(paged(DType::bf16, DType::bf16, {{1, 3000}, {33, 150}}), 512, 512), {.left = 2500, .right = -1200});
  Case spec = behind;
  spec.values = Values::nan_tail;
  put("split-nan-tail", spec);
  Case e4m3 = with_dims(paged(DType::bf16, DType::e4m3, lengths), 512, 512);
  put("on-e4m3", e4m3);
}

inline void wide_cases(Table& table) {
  wide_attention(table);
  wide_paged(table);
}

}  // namespace fovea::check
