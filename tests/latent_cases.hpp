// SPDX-License-Identifier: Apache-2.0
/// The case table of latent_attention, sparse_latent_attention, quantize_latent_cache and dequantize_latent_cache.
#pragma once

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "scale_cases.hpp"
#include "support/latent_case.hpp"

namespace fovea::check {

inline constexpr auto kMin = std::numeric_limits<std::int32_t>::min(), kMax = std::numeric_limits<std::int32_t>::max();

/// Sequences of the same number of queries.
inline std::vector<Sequence> of_lengths(std::int64_t q, const std::vector<std::int64_t>& lengths) {
  std::vector<Sequence> sequences;
  for (const std::int64_t kv : lengths) sequences.push_back({q, kv});
  return sequences;
}

/// Many query tiles leave few CTAs for each, so sequences begin and end inside a CTA's work.
inline void few_parts_cases(std::vector<LatentCase>& table) {
  const auto add = [&](const char* name, LatentCase spec, Tier tier = Tier::full) {
    spec.name = fmt::format("latent_attention/few_parts/{}", name);
    spec.tier = tier;
    table.push_back(std::move(spec));
  };
  const std::vector<std::int64_t> uneven{700, 300, 1500, 90, 640};
  const CacheFormat v32 = CacheFormat::v32_fp8;
  // Query tiles for 64 queries. Most sequences have one query, which is little work.
  const std::vector<Sequence> ragged{{64, 64}, {1, 700}, {2, 1500}, {1, 640}, {1, 300}};
  add("bf16-h16-ragged", {.head = 16, .sequences = ragged, .ragged = true}, Tier::quick);
  add("bf16-h16-page1-ragged", {.head = 16, .page = 1, .sequences = ragged, .ragged = true}, Tier::quick);
  add("v32_fp8-h16-ragged", {.format = v32, .head = 16, .sequences = ragged, .ragged = true}, Tier::quick);
  add("v32_fp8-h15-ragged", {.format = v32, .head = 15, .sequences = ragged, .ragged = true}, Tier::quick);
  std::vector<Sequence> tiny{{64, 64}};
  for (std::int64_t kv = 0; kv < 60; ++kv) tiny.push_back({1, kv});
  add("v32_fp8-h64-tiny", {.format = v32, .head = 64, .sequences = tiny, .ragged = true});
  add("bf16-h64-q8", {.head = 64, .sequences = of_lengths(8, uneven)});
  add("bf16-h64-page1-q8", {.head = 64, .page = 1, .sequences = of_lengths(8, uneven)});
  add("bf16-h9-q30", {.head = 9, .sequences = of_lengths(30, uneven)});
  add("bf16-h64-ragged", {.head = 64, .sequences = {{8, 700}, {1, 300}, {3, 1500}, {8, 90}}, .ragged = true});
  add("v32_fp8-h64-q8", {.format = v32, .head = 64, .sequences = of_lengths(8, uneven)});
  add("v32_fp8-h9-q30", {.format = v32, .head = 9, .sequences = of_lengths(30, uneven)});
  // Sequences of equal length.
  add("bf16-h16-even-odd", {.head = 16, .sequences = of_lengths(1, std::vector<std::int64_t>(50, 600))});
  add("bf16-h128-even", {.head = 128, .sequences = of_lengths(1, std::vector<std::int64_t>(5, 3200))});
}

/// Sequences that are split.
inline void split_cases(std::vector<LatentCase>& table) {
  const auto add = [&](const char* name, LatentCase spec, Tier tier = Tier::quick) {
    spec.name = fmt::format("latent_attention/split/{}", name);
    spec.tier = tier;
    table.push_back(std::move(spec));
  };
  add("bf16-h16", {.sequences = of_lengths(1, {2100, 1024, 1025})});
  add("bf16-h5", {.head = 5, .sequences = of_lengths(1, {2100})});
  add("bf16-h16-of-six", {.sequences = of_lengths(1, {1100, 700, 520, 1030, 900, 600})});
  add("bf16-h9-of-twelve", {.head = 9, .sequences = of_lengths(1, {1500, 700, 5, 650, 64, 600, 1, 520, 515, 0, 900, 513})});
  add("bf16-h128", {.head = 128, .sequences = of_lengths(1, {0, 1, 32, 33, 63, 64, 65, 96, 97, 127, 128, 129, 2049})}, Tier::full);
  add("bf16-h128-page1", {.head = 128, .page = 1, .sequences = of_lengths(1, {2049, 130})}, Tier::full);
  add("bf16-on-e4m3-h128-q2", {.rows = DType::e4m3, .head = 128, .sequences = of_lengths(2, {1500, 7}), .has_scale = true}, Tier::full);
  add("v32_fp8-h128", {.format = CacheFormat::v32_fp8, .head = 128, .page = 16, .sequences = of_lengths(1, {8300, 3})}, Tier::full);
  add("bf16-h16-long-of-five", {.sequences = of_lengths(1, {3400, 1, 1, 1, 1})}, Tier::full);  // combined by three groups, in two turns
  const std::vector<Sequence> around = of_lengths(1, {0, 1, 63, 64, 65, 127, 128, 129, 2049});
  add("v32_fp8-h128-tiles", {.format = CacheFormat::v32_fp8, .head = 128, .sequences = around}, Tier::full);
  add("v4_fp8-h65-tiles", {.format = CacheFormat::v4_fp8, .row = 512, .head = 65, .sequences = around}, Tier::full);
  add("v41_fp8-h128-tiles", {.format = CacheFormat::v41_fp8, .row = 512, .head = 128, .sequences = around}, Tier::full);
  add("bf16-on-e4m3-h128-tiles", {.rows = DType::e4m3, .head = 128, .sequences = around, .has_scale = true}, Tier::full);
  add("f16-on-e4m3-row512-h65-tiles", {.dtype = DType::f16, .rows = DType::e4m3, .row = 512, .head = 65, .sequences = around}, Tier::full);
}

/// Scores of either sign far beyond what exp can hold: in one tile, in several, and in splits that are reduced.
inline void vast_cases(std::vector<LatentCase>& table) {
  using Keys = Vast::Keys;
  const auto add = [&](const char* name, LatentCase spec, Vast vast) {
    spec = with_vast(std::move(spec), vast);
    spec.name = fmt::format("latent_attention/vast/{}", name);
    table.push_back(std::move(spec));
  };
  const CacheFormat v32 = CacheFormat::v32_fp8;
  const std::vector<Sequence> few = of_lengths(1, {1, 64, 65, 200}), split = of_lengths(1, {2100, 3});
  add("bf16-1e10", {.sequences = few}, {1.1e10f, Keys::positive});
  add("bf16-1e10-negative", {.sequences = few}, {1.1e10f, Keys::negative});
  add("bf16-1e10-few", {.sequences = few}, {1.1e10f, Keys::few});
  add("bf16-1e20-mixed-h128-q2", {.head = 128, .sequences = of_lengths(2, {130, 3})}, {1.1e20f, Keys::mixed});
  add("bf16-1e36-h9-page1", {.head = 9, .page = 1, .sequences = few}, {5.3e35f, Keys::positive});
  add("bf16-1e36-negative-prefill", {.head = 6, .sequences = of_lengths(40, {70})}, {5.3e35f, Keys::negative});
  add("bf16-1e10-split", {.sequences = split}, {1.1e10f, Keys::positive});
  add("bf16-1e10-negative-split", {.sequences = split}, {1.1e10f, Keys::negative});
  add("bf16-1e36-few-split", {.sequences = split}, {5.3e35f, Keys::few});
  add("f16-1e10-negative", {.dtype = DType::f16, .rows = DType::f16, .sequences = few}, {1.1e10f, Keys::negative});
  add("f32-1e10", {.dtype = DType::f32, .rows = DType::f32, .sequences = few}, {1.1e10f, Keys::positive});
  add("f32-1e36-negative", {.dtype = DType::f32, .rows = DType::f32, .sequences = few}, {5.3e35f, Keys::negative});
  add("bf16-on-e4m3-1e10", {.rows = DType::e4m3, .sequences = few, .has_scale = true}, {1.1e10f, Keys::positive});
  add("v32_fp8-1e10-negative", {.format = v32, .head = 64, .sequences = few}, {1.1e10f, Keys::negative});
  add("v32_fp8-1e10-split", {.format = v32, .sequences = split}, {1.1e10f, Keys::positive});
  add("v32_fp8-1e36-mixed", {.format = v32, .head = 20, .sequences = of_lengths(2, {130, 40})}, {5.3e35f, Keys::mixed});
}

/// Keys that are not finite, and that only some rows of a tile see. Infinities have a NaN beside them: alone they may weigh nothing.
inline void partly_seen_cases(std::vector<LatentCase>& table) {
  const auto add = [&](const char* name, LatentCase spec, Tier tier = Tier::quick) {
    spec.name = fmt::format("latent_attention/partly_seen/{}", name);
    spec.tier = tier;
    table.push_back(std::move(spec));
  };
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  const DType f16 = DType::f16, e4m3 = DType::e4m3;
  const std::vector<NotFinite> nan{{0, 17, kNan}}, inf{{1, 300, kInf}, {1, 17, kNan}, {2, 5, -kInf}, {2, 17, kNan}}, rope{{0, 570, kNan}};
  const std::vector<Sequence> two = of_lengths(2, {100, 65}), four = of_lengths(4, {150, 64, 67});
  for (const std::int64_t head : {16, 64, 128}) {
    const Tier tier = head == 128 ? Tier::full : Tier::quick;
    add(fmt::format("bf16-h{}-nan", head).c_str(), {.head = head, .sequences = two, .not_finite = nan}, tier);
    add(fmt::format("bf16-h{}-q4", head).c_str(), {.head = head, .sequences = four, .not_finite = {{1, 300, kNan}, {2, 5, kNan}}}, tier);
  }
  add("bf16-h16-inf", {.sequences = four, .not_finite = inf});
  add("bf16-h16-rope", {.sequences = two, .not_finite = rope});
  add("bf16-h3-many",
      {.head = 3, .sequences = of_lengths(40, {70, 200}), .not_finite = {{0, 17, kNan}, {9, 400, kInf}, {9, 1, kNan}, {35, 2, kNan}}});
  add("bf16-h12-window",
      {.head = 12, .sequences = of_lengths(4, {150}), .mask = sliding_window(70), .not_finite = {{72, 500, kInf}, {72, 1, kNan}}});
  add("bf16-h16-split", {.sequences = of_lengths(3, {2100}), .not_finite = {{0, 17, kNan}, {1, 260, kInf}, {1, 1, kNan}}});
  add("f16-row512-h9", {.dtype = f16, .rows = f16, .row = 512, .head = 9, .sequences = four, .not_finite = inf});
  add("bf16-h16-page1", {.page = 1, .sequences = four, .not_finite = inf});
  add("bf16-h128-page1", {.head = 128, .page = 1, .sequences = two, .not_finite = nan}, Tier::full);
  add("bf16-on-e4m3-h16", {.rows = e4m3, .sequences = four, .has_scale = true, .not_finite = nan});
  add("bf16-on-e4m3-h128", {.rows = e4m3, .head = 128, .sequences = two, .has_scale = true, .not_finite = nan}, Tier::full);
  add("f16-on-e4m3-h5", {.dtype = f16, .rows = e4m3, .head = 5, .sequences = four, .not_finite = nan});
  for (const CacheFormat format : {CacheFormat::v32_fp8, CacheFormat::v4_fp8, CacheFormat::v41_fp8}) {
    const std::string name(packed_format(format)->name);
    const std::int64_t row = packed_format(format)->row();
    add((name + "-h16-nan").c_str(), {.format = format, .row = row, .sequences = four, .not_finite = nan});
    add((name + "-h16-end").c_str(), {.format = format, .row = row, .sequences = four, .not_finite = {{1, row - 3, kInf}, {1, 17, kNan}}});
    add((name + "-h64").c_str(), {.format = format, .row = row, .head = 64, .sequences = two, .not_finite = nan}, Tier::full);
  }
}

inline std::vector<LatentCase> latent_cases() {
  std::vector<LatentCase> table;
  const auto add = [&](const char* name, LatentCase spec, Tier tier = Tier::quick) {
    spec.name = fmt::format("latent_attention/{}", name);
    spec.tier = tier;
    table.push_back(std::move(spec));
  };
  const DType f32 = DType::f32, f16 = DType::f16;
  add("decode/bf16-h16", {.sequences = of_lengths(1, {1, 64, 65, 200})});
  add("decode/bf16-h128", {.head = 128, .sequences = of_lengths(1, {130, 3})});
  add("decode/bf16-h1", {.head = 1, .sequences = of_lengths(1, {77, 0, 5})});
  add("decode/bf16-h8", {.head = 8, .sequences = of_lengths(1, {300, 63})});
  add("decode/bf16-row512-h19", {.row = 512, .head = 19, .sequences = of_lengths(1, {70})});
  add("decode/f16-h17", {.dtype = f16, .rows = f16, .head = 17, .sequences = of_lengths(1, {129})});
  add("decode/f32-h17", {.dtype = f32, .rows = f32, .head = 17, .sequences = of_lengths(1, {129})});
  add("decode/bf16-nothing", {.sequences = of_lengths(1, {0, 0})});
  add("empty/bf16-no-queries", {.sequences = of_lengths(0, {5, 70})});
  add("empty/bf16-no-queries-ragged", {.sequences = of_lengths(0, {5, 70}), .ragged = true});
  add("empty/v32_fp8-no-queries", {.format = CacheFormat::v32_fp8, .sequences = of_lengths(0, {5})});
  add("decode/bf16-h128-q2", {.head = 128, .sequences = of_lengths(2, {5, 130, 777})}, Tier::full);
  add("decode/f16-row512-h64-page8",
      {.dtype = f16, .rows = f16, .row = 512, .head = 64, .page = 8, .sequences = of_lengths(1, {1, 127, 129, 640})});
  add("decode/bf16-h48on3-q2-page32", {.head = 48, .kv_head = 3, .page = 32, .sequences = of_lengths(2, {333, 1000})}, Tier::full);
  add("decode/bf16-many-h128", {.head = 128, .sequences = of_lengths(1, std::vector<std::int64_t>(60, 61))}, Tier::full);
  add("mask/bf16-window-h128-q3", {.head = 128, .sequences = of_lengths(3, {700, 64}), .mask = sliding_window(130)}, Tier::full);
  add("ragged/bf16-h128", {.head = 128, .sequences = {{2, 66}, {0, 10}, {5, 5}, {1, 0}, {1, 513}}, .ragged = true}, Tier::full);
  add("kv_heads/bf16-18on3-page16", {.head = 18, .kv_head = 3, .page = 16, .sequences = of_lengths(1, {40, 41})});
  add("speculative/bf16-h20", {.head = 20, .sequences = of_lengths(3, {90, 2})});
  add("prefill/bf16-h6-page3", {.head = 6, .page = 3, .sequences = of_lengths(40, {70})});
  add("ragged/bf16-h9-page1", {.head = 9, .page = 1, .sequences = {{2, 66}, {0, 10}, {5, 5}, {1, 0}}, .ragged = true});
  add("ragged/f32-h3-page128",
      {.dtype = f32, .rows = f32, .head = 3, .page = 128, .sequences = {{7, 300}, {1, 1}, {3, 129}}, .ragged = true});
  add("mask/bf16-window", {.head = 12, .sequences = of_lengths(4, {150}), .mask = sliding_window(70)});
  add("mask/bf16-full", {.head = 3, .sequences = of_lengths(5, {150}), .mask = {}});
  add("mask/bf16-nobody-sees", {.head = 16, .sequences = of_lengths(2, {150}), .mask = {.left = -5, .right = 2}});
  latent_scales(add);
  add("layout/bf16-odd-rows", {.head = 65, .gap = 1, .sequences = of_lengths(2, {70, 129})});
  add("layout/bf16-contiguous", {.head = 17, .gap = 0, .sequences = of_lengths(2, {70, 129})});
  add("packed/v32_fp8-h64", {.format = CacheFormat::v32_fp8, .head = 64, .sequences = of_lengths(1, {200, 0, 64})});
  add("packed/v32_fp8-h7-page5", {.format = CacheFormat::v32_fp8, .head = 7, .page = 5, .sequences = of_lengths(1, {200, 63})});
  add("packed/v32_fp8-odd-rows", {.format = CacheFormat::v32_fp8, .head = 5, .page = 6, .gap = 1, .sequences = of_lengths(1, {90})});
  add("packed/v4_fp8-page16", {.format = CacheFormat::v4_fp8, .row = 512, .page = 16, .sequences = of_lengths(2, {100})});
  add("packed/v41_fp8", {.format = CacheFormat::v41_fp8, .row = 512, .sequences = of_lengths(1, {1100})});
  add("packed/v41_fp8_planar-page7", {.format = CacheFormat::v41_fp8_planar, .row = 512, .page = 7, .sequences = of_lengths(1, {100})});

  partly_seen_cases(table);
  few_parts_cases(table);
  split_cases(table);
  vast_cases(table);
  const auto eight = [](std::int64_t kv) { return std::vector<Sequence>(8, Sequence{1, kv}); };
  add("bench/decode-bf16-h128-b8-kv4096", {.head = 128, .gap = 0, .sequences = eight(4096)}, Tier::bench);
  add("bench/decode-bf16-h16-b8-kv8192", {.head = 16, .gap = 0, .sequences = eight(8192)}, Tier::bench);
  add("bench/decode-bf16-h128-b8-kv2048", {.head = 128, .gap = 0, .sequences = eight(2048)}, Tier::bench);
  add("bench/decode-v32_fp8-h128-b8-kv4096", {.format = CacheFormat::v32_fp8, .head = 128, .gap = 0, .sequences = eight(4096)},
      Tier::bench);
  return table;
}

inline void sparse_bench_cases(std::vector<SparseCase>& table) {
  const auto add = [&](const char* name, SparseCase spec) {
    spec.name = fmt::format("sparse_latent_attention/bench/{}", name);
    spec.tier = Tier::bench;
    table.push_back(std::move(spec));
  };
  SparseCase decode{
      .head = 128, .batch = 8, .gap = 0, .main = {.format = CacheFormat::v32_fp8, .topk = 2048, .blocks = 1024}, .lists = Lists::full};
  add("decode-v32_fp8-h128-b8-topk2048", decode);
  decode.main.format = CacheFormat::rows;
  add("decode-bf16-h128-b8-topk2048", decode);
  SparseCase prefill{.head = 128, .batch = 1, .seq_q = 64, .gap = 0, .main = {.topk = 2048, .page = 8192, .blocks = 1}, .flat = true};
  prefill.lists = Lists::full;
  add("prefill-bf16-h128-q64-topk2048", prefill);
}

inline SparseCase with_extra(SparseCase spec, SparseCase::List extra) {
  spec.extra = std::move(extra);
  return spec;
}

/// Sequences that are split, evenly and unevenly.
inline void split_cases(std::vector<SparseCase>& table) {
  const auto add = [&](const char* name, SparseCase spec) {
    spec.name = fmt::format("sparse_latent_attention/{}", name);
    spec.tier = Tier::full;
    table.push_back(std::move(spec));
  };
  // Equal sequences would not be split, or would be split evenly.
  const auto uneven = [](SparseCase spec) {
    spec.main.lengths.assign(static_cast<std::size_t>(spec.batch), static_cast<std::int32_t>(spec.main.topk));
    spec.main.lengths.back() = 1;
    return spec;
  };
  const CacheFormat v32 = CacheFormat::v32_fp8, v4 = CacheFormat::v4_fp8, v41 = CacheFormat::v41_fp8, planar = CacheFormat::v41_fp8_planar;
  add("split/v4_fp8-h128-sink", {.row = 512, .head = 128, .main = {.format = v4, .topk = 1500}, .sink = true});
  add("split/v41_fp8-h128", {.row = 512, .head = 128, .main = {.format = v41, .topk = 1500}});
  add("split/bf16-h65-q2", {.head = 65, .batch = 3, .seq_q = 2, .main = {.topk = 900}});
  add("few_parts/v32_fp8-h65-many", uneven({.head = 65, .batch = 40, .seq_q = 2, .main = {.format = v32, .topk = 300}}));
  add("even/v32_fp8-h128", {.head = 128, .batch = 4, .seq_q = 2, .main = {.format = v32, .topk = 2048}});
  add("even/v32_fp8-h33-odd", {.head = 33, .batch = 25, .seq_q = 2, .main = {.format = v32, .topk = 600}});
  add("even/v4_fp8-h65-whole", {.row = 512, .head = 65, .batch = 40, .seq_q = 2, .main = {.format = v4, .topk = 300}, .sink = true});
  const SparseCase::List most{.format = v32, .topk = 8300, .page = 64, .blocks = 200, .lengths = {8300, 130, 0, 300, 64}};
  add("long/v32_fp8-h128", {.head = 128, .batch = 5, .seq_q = 2, .main = most});
  add("long/v32_fp8-h65-extra-sink",
      {.head = 65, .batch = 5, .main = most, .extra = SparseCase::List{.format = v32, .topk = 70, .page = 3}, .sink = true});
  // Sequences of an odd number of tiles, about as many as an H200 has SMs. A CTA that reduces ends one sequence before, and starts another.
  add("few_parts/v32_fp8-h33-odd-tiles", uneven({.head = 33, .batch = 50, .seq_q = 2, .main = {.format = v32, .topk = 570}}));
  add("few_parts/v41_fp8-h33-odd-tiles", uneven({.row = 512, .head = 33, .batch = 50, .seq_q = 2, .main = {.format = v41, .topk = 570}}));
  add("few_parts/v41_fp8_planar-h128-many",
      uneven({.row = 512, .head = 128, .batch = 40, .seq_q = 2, .main = {.format = planar, .topk = 300, .page = 7}}));
  add("few_parts/v4_fp8-h65-extra-many",
      uneven(with_extra({.row = 512, .head = 65, .batch = 40, .seq_q = 2, .main = {.format = v4, .topk = 130}, .sink = true},
                        SparseCase::List{.format = v4, .topk = 190, .page = 3})));
  add("split/bf16-and-v32_fp8-h128",
      with_extra({.head = 128, .main = {.topk = 500}}, SparseCase::List{.format = v32, .topk = 400, .page = 3}));
  add("split/v41_fp8-and-bf16-h128",
      with_extra({.row = 512, .head = 128, .main = {.format = v41, .topk = 500}}, SparseCase::List{.topk = 400}));
  const SparseCase::List fp4{.format = CacheFormat::v41_fp4, .topk = 260, .page = 3};
  add("few_parts/v41_fp8-and-fp4-h128-many",
      uneven(with_extra({.row = 512, .head = 128, .batch = 30, .seq_q = 2, .main = {.format = v41, .topk = 100}}, fp4)));
  add("few_parts/v41_fp8_planar-and-fp4-h40-many",
      uneven(with_extra({.row = 512, .head = 40, .batch = 60, .seq_q = 2, .main = {.format = planar, .topk = 140, .page = 7}, .sink = true},
                        fp4)));
  add("few_parts/v4_fp8-h17-many",
      uneven({.row = 512, .head = 17, .batch = 75, .seq_q = 2, .main = {.format = v4, .topk = 200}, .sink = true}));
}

/// Scores of either sign far beyond what exp can hold, with max_logits and without: in one tile, and in splits that are reduced.
inline void vast_cases(std::vector<SparseCase>& table) {
  using Keys = Vast::Keys;
  const auto add = [&](const char* name, SparseCase spec, Vast vast) {
    spec = with_vast(std::move(spec), vast);
    spec.name = fmt::format("sparse_latent_attention/vast/{}", name);
    table.push_back(std::move(spec));
  };
  const SparseCase::List v32{.format = CacheFormat::v32_fp8}, long_v32{.format = CacheFormat::v32_fp8, .topk = 2500};
  const SparseCase::List v4{.format = CacheFormat::v4_fp8, .page = 3};
  add("bf16-1e10", {.main = {.topk = 130}}, {1.1e10f, Keys::positive});
  add("bf16-1e10-negative", {.main = {.topk = 130}}, {1.1e10f, Keys::negative});
  add("bf16-1e10-one-token", {.main = {.topk = 1}, .lists = Lists::full}, {1.1e10f, Keys::positive});
  add("bf16-1e10-negative-one-token", {.main = {.topk = 1}, .lists = Lists::full}, {1.1e10f, Keys::negative});
  add("bf16-1e10-few-sink", {.main = {.topk = 130}, .sink = true}, {1.1e10f, Keys::few});
  add("bf16-1e20-mixed-no-max", {.main = {.topk = 130}, .max_logits = false}, {1.1e20f, Keys::mixed});
  add("bf16-1e36-negative-sink", {.main = {.topk = 130}, .sink = true}, {5.3e35f, Keys::negative});
  add("bf16-1e36-flat-h128", {.head = 128, .batch = 1, .seq_q = 9, .main = {.topk = 140}, .flat = true}, {5.3e35f, Keys::positive});
  add("bf16-1e10-flat-h64-no-max",
      {.head = 64, .batch = 1, .seq_q = 9, .main = {.topk = 140}, .flat = true, .max_logits = false, .lists = Lists::full},
      {1.1e10f, Keys::negative});
  add("f16-1e10-negative", {.dtype = DType::f16}, {1.1e10f, Keys::negative});
  add("f32-1e36", {.dtype = DType::f32}, {5.3e35f, Keys::positive});
  add("v32_fp8-1e10", {.main = v32}, {1.1e10f, Keys::positive});
  add("v32_fp8-1e36-negative-h128", {.head = 128, .main = v32}, {5.3e35f, Keys::negative});
  add("v32_fp8-1e10-split", {.main = long_v32, .max_logits = false}, {1.1e10f, Keys::positive});
  add("v32_fp8-1e10-negative-split", {.main = long_v32, .max_logits = false}, {1.1e10f, Keys::negative});
  add("v32_fp8-1e36-few-split", {.main = long_v32, .sink = true, .max_logits = false}, {5.3e35f, Keys::few});
  add("v4_fp8-1e20-mixed-extra", with_extra({.row = 512, .main = v4}, v4), {1.1e20f, Keys::mixed});
}

inline std::vector<SparseCase> sparse_cases() {
  std::vector<SparseCase> table;
  const auto add = [&](const char* name, SparseCase spec, Tier tier = Tier::quick) {
    spec.name = fmt::format("sparse_latent_attention/{}", name);
    spec.tier = tier;
    table.push_back(std::move(spec));
  };
  const CacheFormat rows = CacheFormat::rows, v32 = CacheFormat::v32_fp8, v4 = CacheFormat::v4_fp8, v41 = CacheFormat::v41_fp8,
                    planar = CacheFormat::v41_fp8_planar, fp4 = CacheFormat::v41_fp4;
  const auto listed = [](CacheFormat format, std::int64_t topk, std::vector<std::int32_t> lengths = {}) {
    return SparseCase::List{.format = format, .topk = topk, .page = format == CacheFormat::rows ? 64 : 3, .lengths = std::move(lengths)};
  };

  add("paged/bf16", {.main = {.topk = 130}});
  add("paged/bf16-row512-h64-full", {.row = 512, .head = 64, .main = {.topk = 64}, .lists = Lists::full});
  add("paged/f16-h20", {.dtype = DType::f16, .head = 20});
  add("paged/f32-h20", {.dtype = DType::f32, .head = 20});
  add("paged/bf16-h1", {.head = 1, .main = {.topk = 200}});
  add("paged/bf16-odd-rows", {.head = 17, .gap = 1, .main = {.topk = 90}});
  add("paged/bf16-one-token", {.main = {.topk = 1}, .lists = Lists::full});
  add("packed/v32_fp8-h3", {.head = 3, .main = {.format = v32, .topk = 200}});
  add("packed/v32_fp8-h128", {.head = 128, .main = {.format = v32, .topk = 150}});
  add("packed/v4_fp8-h17-page5", {.row = 512, .head = 17, .main = {.format = v4, .page = 5}});
  add("packed/v41_fp8-q3", {.row = 512, .seq_q = 3, .main = {.format = v41}});
  add("packed/v41_fp8_planar-page1", {.row = 512, .main = {.format = planar, .page = 1}});
  add("packed/v32_fp8-odd-rows", {.head = 5, .gap = 1, .main = {.format = v32, .page = 6}});
  add("packed/v4_fp8-odd-rows", {.row = 512, .gap = 1, .main = {.format = v4, .page = 3}});
  add("split/v32_fp8-h16", {.main = {.format = v32, .topk = 2500}});
  add("split/v32_fp8-q6", {.batch = 1, .seq_q = 6, .main = {.format = v32, .topk = 1100}});
  add("split/v32_fp8-extra", with_extra({.main = {.format = v32, .topk = 1000}, .max_logits = false}, listed(v32, 900, {900, 31})));
  add("flat/bf16-h128-many", {.head = 128, .batch = 1, .seq_q = 150, .main = {.topk = 140}, .flat = true, .sink = true}, Tier::full);
  add("packed/v41_fp8-h40-many", {.row = 512, .head = 40, .batch = 75, .seq_q = 2, .main = {.format = v41, .topk = 200}}, Tier::full);
  add("extra/v4_fp8-sink", with_extra({.row = 512, .main = {.format = v4}, .sink = true}, listed(v4, 90)));
  add("extra/v41_fp8-and-fp4-h64", with_extra({.row = 512, .head = 64, .main = {.format = v41}}, listed(fp4, 33)));
  add("extra/v41_fp8-and-fp4-h4", with_extra({.row = 512, .head = 4, .main = {.format = v41}}, listed(fp4, 33)));
  add("extra/v41_fp8-and-fp4-h4-lengths",
      with_extra({.row = 512, .head = 4, .batch = 5, .main = listed(v41, 90, {0, 60, 90, 0, 7})}, listed(fp4, 140, {140, 70, 0, 0, 1})));
  add("extra/v4_fp8-and-fp4", with_extra({.row = 512, .main = {.format = v4}}, listed(fp4, 33)));
  add("extra/bf16-row512-and-v41_fp8", with_extra({.row = 512}, listed(v41, 33)));
  add("extra/bf16-and-v32_fp8", with_extra({}, listed(v32, 10)));
  add("extra/v41_fp8-and-bf16", with_extra({.row = 512, .main = {.format = v41}}, listed(rows, 33)));
  add("flat/bf16-h24-sink", {.head = 24, .batch = 1, .seq_q = 7, .flat = true, .sink = true});
  add("empty/bf16-no-queries", {.seq_q = 0});
  add("flat/bf16-lengths", {.batch = 1, .seq_q = 7, .main = listed(rows, 70, {0, 1, 69, 70, 71, kMin, kMax}), .flat = true});
  add("flat/v32_fp8-one-token", {.batch = 1, .seq_q = 5, .main = {.format = v32, .topk = 1}, .flat = true});
  add("lengths/bf16", {.batch = 5, .seq_q = 2, .main = listed(rows, 70, {-1, 0, 1, 65, kMax})});
  add("lengths/bf16-extra", with_extra({.head = 65, .batch = 3, .main = listed(rows, 70, {0, 64, 70})}, listed(rows, 70, {70, 0, kMin})));
  add("invalid/bf16-all", with_extra({.sink = true, .lists = Lists::all_invalid}, listed(rows, 5)));
  add("invalid/v32_fp8-all-h2", {.head = 2, .main = {.format = v32}, .sink = true, .lists = Lists::all_invalid});
  add("scale/bf16-negative", {.scale = -0.05f});
  add("sink/bf16", {.sink = true});
  add("values/bf16-nan-token", {.batch = 3, .main = {.topk = 40}, .lists = Lists::full, .nan_token = true});
  // In a partial result, which the attention kernel reduces or a second kernel combines.
  add("values/bf16-nan-token-merged", {.batch = 3, .main = {.topk = 900}, .max_logits = false, .lists = Lists::full, .nan_token = true});
  add("values/bf16-nan-token-collected", {.batch = 3, .main = {.topk = 300}, .max_logits = false, .lists = Lists::full, .nan_token = true});
  split_cases(table);
  vast_cases(table);
  sparse_bench_cases(table);
  return table;
}

inline std::vector<ConversionCase> conversion_cases() {
  std::vector<ConversionCase> table;
  for (const bool quantize : {true, false})
    for (const PackedFormat& format : kPackedFormats) {
      const char* operation = quantize ? "quantize_latent_cache" : "dequantize_latent_cache";
      for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
        for (const ScaleRule rule : {ScaleRule::power_of_two, ScaleRule::exact}) {
          if (!quantize && rule == ScaleRule::exact) continue;
          const char* suffix = !quantize ? "" : rule == ScaleRule::exact ? "-exact" : "-power-of-two";
          for (const bool aligned : {false, true})
            table.push_back(
                {.name = fmt::format("{}/{}/{}-{}{}", operation, aligned ? "aligned" : "format", format.name, name_of(dtype), suffix),
                 .quantize = quantize,
                 .format = format.format,
                 .dtype = dtype,
                 .rule = rule,
                 .gap = aligned ? 16 : 11});
        }
      table.push_back({.name = fmt::format("{}/rows/{}-one", operation, format.name),
                       .quantize = quantize,
                       .format = format.format,
                       .dtype = DType::bf16,
                       .tokens = 1,
                       .page = 1,
                       .blocks = 1});
      if (format.format != CacheFormat::v32_fp8) continue;
      table.push_back({.name = fmt::format("{}/bench/{}-bf16-rows4096", operation, format.name),
                       .tier = Tier::bench,
                       .quantize = quantize,
                       .format = format.format,
                       .dtype = DType::bf16,
                       .tokens = 4096,
                       .page = 64,
                       .blocks = 64,
                       .gap = 0});
    }
  return table;
}

}  // namespace fovea::check
