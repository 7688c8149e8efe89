// SPDX-License-Identifier: Apache-2.0
/// The case tables of 8-bit attention and its quantisers.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "support/quantized_case.hpp"

namespace fovea::check {

/// One description serves each step that it fits. It has a name without the operation, and the remaining fields.
using QuantizedShapes = std::vector<std::pair<std::string, QuantizedCase>>;

inline constexpr std::pair<const char*, Int8Groups> kInt8Groups[] = {{"block", {Int8Granularity::block}},
                                                                     {"warp32", {Int8Granularity::warp, 32}},
                                                                     {"warp16", {Int8Granularity::warp, 16}},
                                                                     {"thread32", {Int8Granularity::thread, 32}},
                                                                     {"thread16", {Int8Granularity::thread, 16}}};

inline QuantizedShapes quantized_shapes() {
  using Values = QuantizedCase::Values;
  const BandMask top_left = causal(Anchor::top_left), window{.left = 30, .right = 9};
  const std::vector<Sequence> mixed{{0, 30}, {130, 130}, {20, 0}, {0, 0}, {1, 99}, {70, 200}, {129, 65}};
  QuantizedShapes all;
  for (const auto& [name, groups] : kInt8Groups) {
    all.emplace_back(fmt::format("granularity/{}", name), QuantizedCase{.groups = groups, .sequences = {{260, 131}}, .mask = causal()});
    QuantizedCase ragged{.groups = groups, .head = 4, .sequences = mixed, .ragged = true, .smooth_v = true, .mask = causal()};
    all.emplace_back(fmt::format("ragged/{}", name), ragged);
  }
  all.emplace_back("dtype/f16", QuantizedCase{.dtype = DType::f16, .sequences = {{131, 200}, {131, 200}}});
  all.emplace_back("dtype/f32", QuantizedCase{.dtype = DType::f32, .sequences = {{90, 66}}, .mask = top_left});
  all.emplace_back("head_dim/96", QuantizedCase{.dim = 96, .sequences = {{77, 190}, {77, 190}}, .smooth_v = true, .mask = window});
  all.emplace_back("head_dim/128", QuantizedCase{.dim = 128, .sequences = {{130, 700}}, .mask = causal()});
  all.emplace_back("head_dim/256", QuantizedCase{.head = 3, .kv_head = 1, .dim = 256, .sequences = {{100, 140}}, .mask = causal()});
  // Several query tiles and key tiles, whose ends fall between blocks of scales.
  for (const auto& [name, groups] : kInt8Groups) {
    for (const std::int64_t dim : {64, 128}) {
      QuantizedCase tiles{.groups = groups, .head = 4, .dim = dim, .sequences = {{450, 586}}, .smooth_v = true, .mask = causal()};
      all.emplace_back(fmt::format("tiles/d{}-{}", dim, name), tiles);
    }
  }
  all.emplace_back("tiles/full", QuantizedCase{.dim = 128, .sequences = {{400, 513}}, .smooth_v = true});
  all.emplace_back("gqa/6on2", QuantizedCase{.head = 6, .sequences = {{77, 90}, {77, 90}}, .mask = causal()});
  all.emplace_back("smoothing/none", QuantizedCase{.sequences = {{64, 64}}, .smooth_k = false});
  all.emplace_back("smoothing/both", QuantizedCase{.sequences = {{130, 150}}, .smooth_v = true, .values = Values::biased});
  all.emplace_back("smoothing/v", QuantizedCase{.sequences = {{70, 64}}, .smooth_k = false, .smooth_v = true});
  all.emplace_back("lengths/one", QuantizedCase{.sequences = {{1, 1}, {1, 1}}, .smooth_v = true});
  all.emplace_back("lengths/one-query", QuantizedCase{.head = 4, .sequences = {{1, 2500}}, .mask = causal()});
  all.emplace_back("lengths/no-key", QuantizedCase{.sequences = {{5, 0}}, .smooth_v = true});
  for (const std::int64_t length : {63, 64, 65, 127, 128, 129})
    all.emplace_back(fmt::format("lengths/{}", length), QuantizedCase{.sequences = {{length, length}}, .mask = causal()});
  all.emplace_back("mask/sees-nothing", QuantizedCase{.sequences = {{190, 60}}, .smooth_v = true, .mask = causal()});
  all.emplace_back("mask/window", QuantizedCase{.sequences = {{150, 170}}, .mask = window, .values = Values::unseen_nan});
  all.emplace_back("mask/window-causal",
                   QuantizedCase{.sequences = {{40, 420}}, .smooth_v = true, .mask = sliding_window(11), .values = Values::unseen_nan});
  all.emplace_back("mask/top-left", QuantizedCase{.sequences = {{100, 420}}, .mask = top_left, .values = Values::unseen_nan});
  all.emplace_back("mask/nobody-sees",
                   QuantizedCase{.sequences = {{70, 70}}, .mask = {.left = -5, .right = 2}, .values = Values::unseen_nan});
  all.emplace_back("values/zero-groups", QuantizedCase{.sequences = {{150, 150}}, .mask = causal(), .values = Values::zero_groups});
  all.emplace_back("scale/negative", QuantizedCase{.sequences = {{70, 90}}, .scale = -0.2f});
  all.emplace_back("layout/odd-rows", QuantizedCase{.head = 4, .sequences = {{70, 90}, {70, 90}}, .mask = causal(), .gap = 3});
  all.emplace_back("layout/no-lse", QuantizedCase{.sequences = {{70, 90}}, .lse = false, .gap = 0});
  all.emplace_back("layout/no-lse-causal", QuantizedCase{.dim = 128, .sequences = {{450, 586}}, .lse = false, .mask = causal()});
  all.emplace_back("layout/no-lse-window", QuantizedCase{.sequences = {{40, 420}}, .lse = false, .mask = sliding_window(11)});
  return all;
}

/// Scores far beyond what exp can hold. There is one group of keys, so equal keys tie whatever its scale is.
inline QuantizedShapes vast_shapes() {
  using Keys = Vast::Keys;
  QuantizedShapes all;
  for (const auto& [size_name, size] : {std::pair{"1e10", 1.1e10f}, {"1e36", 5.3e35f}})
    for (const auto& [keys_name, keys] : {std::pair{"positive", Keys::positive}, {"negative", Keys::negative}, {"mixed", Keys::mixed}})
      for (const bool smooth : {false, true}) {
        const std::string name = fmt::format("vast/{}-{}-{}", size_name, keys_name, smooth ? "smoothed" : "plain");
        all.emplace_back(name, with_vast(QuantizedCase{.sequences = {{70, 60}}, .smooth_k = smooth, .mask = causal()}, {size, keys}));
        if (keys == Keys::mixed) continue;
        all.emplace_back(name + "-one-key", with_vast(QuantizedCase{.sequences = {{3, 1}}, .smooth_k = smooth}, {size, keys}));
      }
  const QuantizedCase f16{.dtype = DType::f16, .sequences = {{70, 60}}, .smooth_k = false};
  all.emplace_back("vast/1e10-negative-f16", with_vast(f16, {1.1e10f, Keys::negative}));
  return all;
}

/// Cases for quantised tensors only. A NaN marks its whole group, so the whole is not near unquantised attention.
inline QuantizedShapes not_finite_shapes() {
  using Values = QuantizedCase::Values;
  QuantizedShapes all;
  for (const bool smooth : {false, true})
    all.emplace_back(
        fmt::format("values/not-finite-{}", smooth ? "smoothed" : "plain"),
        QuantizedCase{.sequences = {{260, 200}}, .smooth_k = smooth, .smooth_v = smooth, .mask = causal(), .values = Values::not_finite});
  return all;
}

/// Large and ordinary enough for the promised accuracy.
inline QuantizedShapes gate_shapes() {
  using Values = QuantizedCase::Values;
  QuantizedShapes all;
  for (const auto& [name, groups] : kInt8Groups)
    for (const bool biased : {false, true})
      all.emplace_back(fmt::format("gate/{}{}", name, biased ? "-biased-k" : ""),
                       QuantizedCase{.tier = Tier::full,
                                     .groups = groups,
                                     .kv_head = 1,
                                     .dim = 128,
                                     .sequences = {{512, 512}},
                                     .values = biased ? Values::biased_k : Values::normal,
                                     .gate = true});
  for (const std::int64_t dim : {64, 96, 256})
    all.emplace_back(fmt::format("gate/d{}-causal", dim),
                     QuantizedCase{.tier = Tier::full, .dim = dim, .sequences = {{300, 512}}, .mask = causal(), .gate = true});
  return all;
}

inline std::vector<QuantizedCase> quantized_cases() {
  using Step = QuantizedCase::Step;
  std::vector<QuantizedCase> table;
  const auto add = [&](Step step, const std::string& name, QuantizedCase spec) {
    constexpr const char* kNames[] = {"quantize_qk_int8", "quantize_v", "quantized_attention", "quantize_and_attend"};
    spec.step = step;
    const bool codes_only = step == Step::quantize_qk;
    spec.name =
        fmt::format("{}/{}{}{}", kNames[static_cast<int>(step)], name, codes_only ? "" : "-", codes_only ? "" : name_of(spec.v_dtype));
    table.push_back(std::move(spec));
  };
  const auto finite = quantized_shapes(), vast = vast_shapes(), not_finite = not_finite_shapes(), gates = gate_shapes();
  for (const QuantizedShapes* shapes : {&finite, &not_finite})
    for (const auto& [name, spec] : *shapes) {
      if (spec.values != QuantizedCase::Values::unseen_nan) add(Step::quantize_qk, name, spec);
    }
  for (const DType v_dtype : {DType::f16, DType::e4m3}) {
    const auto of = [v_dtype](QuantizedCase spec) {
      spec.v_dtype = v_dtype;
      return spec;
    };
    for (const auto& [name, spec] : finite) {
      if (spec.values != QuantizedCase::Values::unseen_nan) add(Step::quantize_v, name, of(spec));
      add(Step::attend, name, of(spec));
      add(Step::whole, name, of(spec));
    }
    for (const auto& [name, spec] : vast) add(Step::attend, name, of(spec)), add(Step::whole, name, of(spec));
    for (const auto& [name, spec] : not_finite) add(Step::quantize_v, name, of(spec)), add(Step::attend, name, of(spec));
    for (const auto& [name, spec] : gates) add(Step::whole, name, of(spec));
  }
  QuantizedCase bench{.tier = Tier::bench, .head = 32, .kv_head = 8, .dim = 128, .sequences = {{4096, 4096}}, .gap = 0};
  add(Step::quantize_qk, "bench/bf16-d128-h32x8-s4096", bench);
  for (const DType v_dtype : {DType::f16, DType::e4m3}) {
    bench.v_dtype = v_dtype;
    add(Step::quantize_v, "bench/bf16-d128-h8-s4096", bench);
    for (const bool masked : {false, true}) {
      QuantizedCase prefill = bench;
      if (masked) prefill.mask = causal();
      const std::string name = fmt::format("bench/bf16-d128-h32x8-s4096-{}", masked ? "causal" : "full");
      if (v_dtype == DType::f16) add(Step::attend, name, prefill);
      prefill.gate = !masked;  // of the sampled rows of a causal case, some see only a key or two
      add(Step::whole, name, prefill);
    }
  }
  return table;
}

}  // namespace fovea::check
