// SPDX-License-Identifier: Apache-2.0
/// The case table of attention_backward.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "support/backward_case.hpp"

namespace fovea::check {

/// A NaN or an infinity in one input, visible to some rows.
inline std::vector<std::pair<std::string, BackwardCase>> not_finite_cases() {
  using Values = BackwardCase::Values;
  std::vector<std::pair<std::string, BackwardCase>> cases;
  for (const auto& [name, values] : {std::pair{"nan-query", Values::nan_query},
                                     {"nan-key", Values::nan_key},
                                     {"nan-value", Values::nan_value},
                                     {"nan-dout", Values::nan_dout},
                                     {"infinite-key", Values::infinite_key}})
    for (const bool masked : {true, false})
      cases.emplace_back(fmt::format("{}-{}", name, masked ? "causal" : "full"),
                         BackwardCase{.sequences = {{192, 192}}, .mask = masked ? causal() : BandMask{}, .values = values});
  return cases;
}

/// Scores far beyond what exp can hold. lse is f32, so P is known where one key has all of the weight. Rows see eight keys that differ.
inline std::vector<std::pair<std::string, BackwardCase>> vast_cases(DType dtype) {
  using Keys = Vast::Keys;
  const BackwardCase base{.dtype = dtype, .sequences = {{90, 90}}, .mask = sliding_window(8)};
  const BackwardCase one_key{.dtype = dtype, .sequences = {{40, 1}}};
  BackwardCase sink = base;
  sink.head = 4;
  sink.sink = true;
  BackwardCase capped = base;
  capped.softcap = 30;
  std::vector<std::pair<std::string, BackwardCase>> cases{
      {"1e10", with_vast(base, {1.1e10f, Keys::positive})},
      {"1e10-negative", with_vast(base, {1.1e10f, Keys::negative})},
      {"1e10-one-key", with_vast(one_key, {1.1e10f, Keys::positive})},
      {"1e10-negative-one-key", with_vast(one_key, {1.1e10f, Keys::negative})},
      {"1e10-negative-sink", with_vast(sink, {1.1e10f, Keys::negative})},
      {"1e20-mixed", with_vast(base, {1.1e20f, Keys::mixed})},
      {"1e36-sink", with_vast(sink, {5.3e35f, Keys::positive})},
      {"1e36-negative", with_vast(base, {5.3e35f, Keys::negative})},
  };
  if (dtype != DType::f16) cases.emplace_back("1e36-mixed-softcap30", with_vast(capped, {5.3e35f, Keys::mixed}));
  return cases;
}

/// Lengths around the tiles of kernels, which differ by head dims.
inline std::vector<std::pair<std::string, BackwardCase>> edge_cases() {
  const std::vector<Sequence> lengths{{63, 97}, {64, 96}, {65, 95}, {127, 81}, {128, 63}, {129, 129}};
  std::vector<std::pair<std::string, BackwardCase>> cases;
  for (const auto& [dqk, dv] : {std::pair{64, 64}, {96, 96}, {128, 128}, {192, 128}, {136, 192}, {256, 256}}) {
    const BackwardCase base{.head = 1, .kv_head = 1, .dqk = dqk, .dv = dv, .sequences = lengths, .ragged = true};
    BackwardCase grouped = base;
    grouped.head = 2;
    grouped.mask = causal();
    cases.emplace_back(fmt::format("{}x{}-full", dqk, dv), base);
    cases.emplace_back(fmt::format("{}x{}-2on1-causal", dqk, dv), grouped);
  }
  return cases;
}

/// Cases of the code that only kernels of large head dims have.
inline std::vector<std::pair<std::string, BackwardCase>> large_head_dim_cases() {
  using Values = BackwardCase::Values;
  std::vector<std::pair<std::string, BackwardCase>> cases;
  for (const auto& [dqk, dv] : {std::pair{192, 128}, {256, 256}}) {
    const auto add = [&, dqk = dqk, dv = dv](const char* name, BackwardCase spec) {
      spec.dqk = dqk;
      spec.dv = dv;
      cases.emplace_back(fmt::format("{}x{}-{}", dqk, dv, name), std::move(spec));
    };
    add("causal", {.sequences = {{100, 130}}, .mask = causal()});
    add("window", {.sequences = {{230, 210}}, .mask = {.left = 9, .right = 4}, .values = Values::unseen_nan});
    add("off-diagonal", {.sequences = {{150, 150}}, .mask = {.left = -20, .right = 70}, .values = Values::unseen_nan});
    add("nan-key", {.sequences = {{140, 140}}, .mask = causal(), .values = Values::nan_key});
    add("nan-dout", {.sequences = {{140, 140}}, .mask = causal(), .values = Values::nan_dout});
    add("softcap-sink", {.head = 4, .kv_head = 2, .sequences = {{70, 90}}, .mask = causal(), .softcap = 2.5f, .sink = true});
    add("1e10", with_vast(BackwardCase{.sequences = {{90, 90}}, .mask = sliding_window(8)}, {1.1e10f, Vast::Keys::mixed}));
  }
  return cases;
}

/// Head dims past 256.
inline std::vector<std::pair<std::string, BackwardCase>> wide_cases() {
  const BackwardCase base{.head = 4, .kv_head = 2, .sequences = {{70, 90}, {70, 90}}, .mask = causal(), .sink = true};
  std::vector<std::pair<std::string, BackwardCase>> cases;
  for (const auto& [dqk, dv] : {std::pair{320, 320}, {512, 512}, {512, 64}, {72, 512}}) {
    BackwardCase spec = base;
    spec.dqk = dqk;
    spec.dv = dv;
    cases.emplace_back(fmt::format("{}x{}", dqk, dv), spec);
    spec.ragged = true;
    spec.sequences = {{0, 30}, {130, 130}, {20, 0}, {1, 99}};
    cases.emplace_back(fmt::format("{}x{}-ragged", dqk, dv), spec);
  }
  return cases;
}

/// lse has a gradient too.
inline std::vector<std::pair<std::string, BackwardCase>> dlse_cases() {
  using Values = BackwardCase::Values;
  const BandMask window{.left = 9, .right = 4};
  std::vector<std::pair<std::string, BackwardCase>> cases{
      {"full", {.sequences = {{100, 70}, {100, 70}}}},
      {"6on2-causal", {.head = 6, .kv_head = 2, .sequences = {{90, 120}, {90, 120}}, .mask = causal()}},
      {"more-queries", {.sequences = {{190, 70}}, .mask = causal(), .values = Values::unseen_nan}},
      {"window", {.sequences = {{230, 210}}, .mask = window, .values = Values::unseen_nan}},
      {"nobody-sees", {.sequences = {{40, 40}}, .mask = {.left = -30, .right = 20}, .values = Values::unseen_nan}},
      {"softcap2.5", {.sequences = {{120, 120}}, .mask = causal(), .softcap = 2.5f}},
      {"sink", {.head = 4, .kv_head = 2, .sequences = {{90, 90}, {90, 90}}, .mask = causal(), .sink = true}},
      {"sink-sharp", {.head = 4, .kv_head = 4, .sequences = {{90, 90}}, .sink = true, .values = Values::sharp}},
      {"ragged",
       {.head = 4, .kv_head = 2, .sequences = {{0, 30}, {130, 130}, {20, 0}, {1, 99}, {70, 200}}, .ragged = true, .mask = causal()}},
      {"ragged-padded-sink",
       {.head = 4,
        .kv_head = 2,
        .sequences = {{50, 130}, {130, 50}, {3, 7}},
        .ragged = true,
        .mask = causal(),
        .sink = true,
        .padded = true}},
      {"padded", {.head = 3, .kv_head = 1, .dqk = 40, .dv = 24, .sequences = {{70, 90}, {70, 90}}, .mask = window, .padded = true}},
      {"192x128", {.head = 4, .kv_head = 2, .dqk = 192, .dv = 128, .sequences = {{100, 130}}, .mask = causal(), .sink = true}},
      {"256x256", {.dqk = 256, .dv = 256, .sequences = {{100, 130}}, .mask = causal()}},
      {"nan", {.sequences = {{192, 192}}, .mask = causal(), .values = Values::nan_dlse}},
  };
  for (auto& [name, spec] : cases) spec.dlse = true;
  return cases;
}

/// Kinds of lists, sizes of blocks, ends of sequences, and what no hidden pair may spoil.
inline std::vector<std::pair<std::string, BackwardCase>> block_cases() {
  using Values = BackwardCase::Values;
  const Blocks both{.q = 128, .k = 128}, small{.q = 64, .k = 64, .own_batch = true};
  const BackwardCase base{.sequences = {{330, 500}, {330, 500}}, .blocks = both};
  std::vector<std::pair<std::string, BackwardCase>> cases;
  const auto add = [&](const std::string& name, const auto& change) {
    BackwardCase spec = base;
    change(spec);
    cases.emplace_back(name, std::move(spec));
  };
  for (const auto& [name, blocks] : {std::pair{"both", both},
                                     {"full", Blocks{.q = 128, .k = 128, .partial = false}},
                                     {"partial", Blocks{.q = 128, .k = 128, .full = false, .own_head = false}},
                                     {"64", small},
                                     {"64x128", Blocks{.q = 64, .k = 128, .own_head = false}},
                                     {"128x64", Blocks{.q = 128, .k = 64}},
                                     {"192x96", Blocks{.q = 192, .k = 96}},
                                     {"256x384", Blocks{.q = 256, .k = 384}},
                                     {"16x32", Blocks{.q = 16, .k = 32}},
                                     {"1x224", Blocks{.q = 1, .k = 224}}})
    add(name, [&, blocks = blocks](BackwardCase& spec) { spec.blocks = blocks; });
  for (const Sequence s : {Sequence{1, 300}, {300, 1}, {127, 129}, {128, 128}, {129, 127}, {300, 0}, {0, 300}})
    add(fmt::format("{}x{}", s.q, s.kv), [&](BackwardCase& spec) { spec.sequences = {s, s}; });
  add("700x1500", [&](BackwardCase& spec) { spec.blocks = small, spec.sequences = {{700, 1500}, {700, 1500}}; });
  add("700x1500-causal", [&](BackwardCase& spec) { spec.blocks = small, spec.sequences = {{700, 1500}}, spec.mask = causal(); });
  add("1x1", [](BackwardCase& spec) { spec.head = spec.kv_head = 64, spec.dqk = 8, spec.dv = 16, spec.sequences = {{1, 1}, {1, 1}}; });
  add("causal", [](BackwardCase& spec) { spec.mask = causal(); });
  add("window", [](BackwardCase& spec) { spec.mask = {.left = 70, .right = 9}, spec.values = Values::unseen_nan; });
  add("unseen-nan", [&](BackwardCase& spec) { spec.blocks = small, spec.values = Values::unseen_nan; });
  for (const auto& [name, values] : {std::pair{"nan-query", Values::nan_query},
                                     {"nan-key", Values::nan_key},
                                     {"nan-value", Values::nan_value},
                                     {"nan-dout", Values::nan_dout},
                                     {"infinite-key", Values::infinite_key}})
    add(name, [&, values = values](BackwardCase& spec) { spec.blocks = small, spec.values = values; });
  add("6on2-softcap-sink", [](BackwardCase& spec) { spec.head = 6, spec.softcap = 2.5f, spec.sink = true; });
  add("dlse-padded", [](BackwardCase& spec) { spec.dlse = true, spec.padded = true, spec.mask = causal(); });
  add("128-dims", [](BackwardCase& spec) { spec.dqk = spec.dv = 128, spec.head = 4; });
  add("96x128-dims-64-causal", [&](BackwardCase& spec) { spec.blocks = small, spec.dqk = 96, spec.dv = 128, spec.mask = causal(); });
  add("128-dims-unseen-nan", [&](BackwardCase& spec) { spec.dqk = spec.dv = 128, spec.values = Values::unseen_nan; });
  add("192x128-dims", [](BackwardCase& spec) { spec.dqk = 192, spec.dv = 128, spec.head = 4; });
  add("256-dims-64", [&](BackwardCase& spec) { spec.blocks = small, spec.dqk = spec.dv = 256, spec.mask = causal(), spec.softcap = 3; });
  add("512-dims", [&](BackwardCase& spec) { spec.dqk = spec.dv = 512, spec.sequences = {{150, 130}}; });
  return cases;
}

/// Both layouts of bits, bands and lists beside them, and what no hidden pair may spoil. Some rows see no key, some keys no row does.
inline std::vector<std::pair<std::string, BackwardCase>> packed_mask_cases() {
  using Values = BackwardCase::Values;
  const BackwardCase base{.sequences = {{70, 70}, {70, 70}}, .mask_bits = MaskBits::flat, .values = Values::unseen_nan};
  const std::vector<Sequence> mixed{{5, 5}, {0, 9}, {64, 64}, {1, 130}, {33, 0}, {17, 149}, {1, 1}, {200, 100}};
  std::vector<std::pair<std::string, BackwardCase>> cases;
  const auto add = [&](const std::string& name, const auto& change) {
    BackwardCase spec = base;
    change(spec);
    cases.emplace_back(name, std::move(spec));
  };
  add("every-key", [](BackwardCase&) {});
  add("every-key-rows", [](BackwardCase& spec) { spec.mask_bits = MaskBits::rows, spec.sequences = {{130, 300}}; });
  add("causal", [](BackwardCase& spec) { spec.mask = causal(), spec.sequences = {{200, 200}}; });
  add("causal-top-left", [](BackwardCase& spec) { spec.mask = causal(Anchor::top_left), spec.sequences = {{40, 290}}; });
  add("window", [](BackwardCase& spec) { spec.mask = {.left = 70, .right = 9}, spec.sequences = {{230, 210}}; });
  add("nobody-sees", [](BackwardCase& spec) { spec.mask = {.left = -50, .right = 2}; });
  add("tail20", [](BackwardCase& spec) { spec.mask_tail = 20, spec.sequences = {{70, 300}, {70, 300}}; });
  add("tail100-longer-than-keys", [](BackwardCase& spec) { spec.mask_bits = MaskBits::rows, spec.mask_tail = 100; });
  add("1x1", [](BackwardCase& spec) { spec.head = spec.kv_head = 64, spec.dqk = 8, spec.dv = 16, spec.sequences = {{1, 1}, {1, 1}}; });
  for (const Sequence s : {Sequence{1, 150}, {150, 1}, {30, 0}, {0, 30}, {290, 50}, {129, 127}})
    add(fmt::format("{}x{}", s.q, s.kv), [&](BackwardCase& spec) { spec.sequences = {s, s}; });
  for (const bool padded : {false, true})
    for (const bool rows : {false, true})
      add(fmt::format("ragged-{}{}", rows ? "tail16-rows" : "flat", padded ? "-padded" : ""), [&](BackwardCase& spec) {
        spec.sequences = mixed, spec.ragged = true, spec.padded = padded, spec.head = 4, spec.mask = causal();
        if (rows) spec.mask_bits = MaskBits::rows, spec.mask_tail = 16;
      });
  for (const auto& [name, values] : {std::pair{"nan-query", Values::nan_query},
                                     {"nan-key", Values::nan_key},
                                     {"nan-value", Values::nan_value},
                                     {"nan-dout", Values::nan_dout},
                                     {"infinite-key", Values::infinite_key}})
    add(name, [&, values = values](BackwardCase& spec) { spec.sequences = {{192, 192}}, spec.values = values; });
  add("6on2-softcap-sink", [](BackwardCase& spec) { spec.head = 6, spec.softcap = 2.5f, spec.sink = true; });
  add("dlse-padded", [](BackwardCase& spec) { spec.dlse = true, spec.padded = true, spec.mask = causal(); });
  const auto beside_blocks = [&](const char* name, Blocks blocks, std::int64_t tail) {
    add(name, [&](BackwardCase& spec) { spec.blocks = blocks, spec.mask_tail = tail, spec.sequences = {{330, 500}, {330, 500}}; });
  };
  beside_blocks("blocks", {.q = 128, .k = 128}, 0);
  beside_blocks("blocks-64", {.q = 64, .k = 64, .own_batch = true}, 300);
  beside_blocks("blocks-full", {.q = 128, .k = 96, .partial = false}, 0);
  for (const auto& [dqk, dv] : {std::pair{72, 40}, {192, 128}, {256, 256}, {512, 64}})
    add(fmt::format("{}x{}-dims", dqk, dv), [&, dqk = dqk, dv = dv](BackwardCase& spec) {
      spec.dqk = dqk, spec.dv = dv, spec.sequences = {{100, 130}};
    });
  return cases;
}

/// The cases above, by family.
inline std::vector<std::pair<const char*, std::vector<std::pair<std::string, BackwardCase>>>> families(DType dtype) {
  return {{"edges", edge_cases()},        {"head_dim", large_head_dim_cases()}, {"wide", wide_cases()},
          {"values", not_finite_cases()}, {"vast", vast_cases(dtype)},          {"dlse", dlse_cases()},
          {"blocks", block_cases()},      {"packed_mask", packed_mask_cases()}};
}

inline std::vector<BackwardCase> backward_cases() {
  using Values = BackwardCase::Values;
  std::vector<BackwardCase> table;
  const BandMask top_left = causal(Anchor::top_left), window{.left = 9, .right = 4};
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const auto add = [&](const char* family, const std::string& variant, BackwardCase spec) {
      spec.dtype = dtype;
      spec.tier = dtype == DType::f16 ? Tier::full : Tier::quick;
      spec.name = fmt::format("attention_backward/{}/{}-{}", family, name_of(dtype), variant);
      table.push_back(std::move(spec));
    };
    add("mask", "full", {.sequences = {{128, 96}, {128, 96}}});
    add("mask", "causal", {.sequences = {{200, 200}}, .mask = causal()});
    add("mask", "window", {.sequences = {{230, 210}}, .mask = window, .values = Values::unseen_nan});
    add("mask", "off-diagonal", {.sequences = {{150, 150}}, .mask = {.left = -20, .right = 70}, .values = Values::unseen_nan});
    add("mask", "nobody-sees", {.sequences = {{40, 40}}, .mask = {.left = -30, .right = 20}, .values = Values::unseen_nan});
    add("lengths", "one-row", {.head = 64, .kv_head = 64, .dqk = 8, .dv = 16, .sequences = {{1, 1}, {1, 1}}});
    add("lengths", "one-query", {.sequences = {{1, 150}}, .mask = causal()});
    add("lengths", "one-key", {.sequences = {{150, 1}}});
    add("lengths", "more-queries", {.sequences = {{190, 70}}, .mask = causal(), .values = Values::unseen_nan});
    add("lengths", "more-keys", {.sequences = {{70, 190}}, .mask = top_left, .values = Values::unseen_nan});
    add("head_dim", "72x40", {.dqk = 72, .dv = 40, .sequences = {{67, 101}}, .mask = causal()});
    add("gqa", "6on2", {.head = 6, .kv_head = 2, .sequences = {{90, 120}, {90, 120}}, .mask = causal()});
    add("gqa", "5on1", {.head = 5, .kv_head = 1, .dqk = 32, .dv = 64, .sequences = {{70, 70}}});
    add("softcap", "2.5", {.sequences = {{120, 120}}, .mask = causal(), .softcap = 2.5f});
    add("softcap", "30-sharp", {.sequences = {{90, 90}}, .softcap = 30.0f, .values = Values::sharp});
    add("softcap", "4e37", {.sequences = {{90, 90}}, .mask = causal(), .softcap = 4e37f});
    add("values", "sharp", {.sequences = {{90, 90}}, .mask = causal(), .values = Values::sharp});
    add("scale", "negative", {.sequences = {{90, 90}}, .scale = -0.3f});
    add("sink", "all-kinds", {.head = 4, .kv_head = 2, .sequences = {{90, 90}, {90, 90}}, .mask = causal(), .sink = true});
    add("sink", "nobody-sees",
        {.head = 4, .sequences = {{40, 40}}, .mask = {.left = -30, .right = 20}, .sink = true, .values = Values::unseen_nan});
    add("ragged", "mixed",
        {.head = 4,
         .kv_head = 2,
         .sequences = {{0, 30}, {130, 130}, {20, 0}, {0, 0}, {1, 99}, {70, 200}},
         .ragged = true,
         .mask = causal()});
    add("ragged", "padded-sink",
        {.head = 4,
         .kv_head = 2,
         .sequences = {{50, 130}, {130, 50}, {3, 7}},
         .ragged = true,
         .mask = causal(),
         .softcap = 4.0f,
         .sink = true,
         .padded = true,
         .values = Values::unseen_nan});
    add("layout", "padded",
        {.head = 3, .kv_head = 1, .dqk = 40, .dv = 24, .sequences = {{70, 90}, {70, 90}}, .mask = window, .padded = true});
    for (const auto& [family, cases] : families(dtype))
      for (const auto& [variant, spec] : cases) add(family, variant, spec);
  }
  BackwardCase bench{.head = 16, .kv_head = 16, .dqk = 128, .dv = 128, .sequences = {{2048, 2048}}, .mask = causal()};
  bench.name = "attention_backward/bench/bf16-d128-h16-s2048-causal";
  bench.tier = Tier::bench;
  table.push_back(bench);
  return table;
}

}  // namespace fovea::check
