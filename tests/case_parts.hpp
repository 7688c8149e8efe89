// SPDX-License-Identifier: Apache-2.0
/// The parts of the cases in tests/cases.hpp: builders, and the dimensions, masks, values and layouts that families run through.
#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "fovea/mask.hpp"
#include "support/case.hpp"

namespace fovea::check {

using Table = std::vector<Case>;

inline Case sized(Case spec, DType dtype) {
  const bool quantised = dtype == DType::e4m3;
  spec.dtype = spec.kv_dtype = dtype;
  spec.out_dtype = quantised ? DType::bf16 : dtype;
  spec.scales = quantised ? Scales::per_head : Scales::none;
  return spec;
}

/// Dense attention: all sequences of one length make a fixed batch.
inline Case attention(DType dtype, std::vector<Sequence> sequences, BandMask mask = {}) {
  return sized({.operation = Operation::attention, .sequences = std::move(sequences), .mask = mask}, dtype);
}

inline Case ragged(DType dtype, std::vector<Sequence> sequences, BandMask mask = {}) {
  Case spec = attention(dtype, std::move(sequences), mask);
  spec.ragged = true;
  return spec;
}

/// Paged attention. An e4m3 cache is read by the given queries.
inline Case paged(DType dtype, DType cache, std::vector<Sequence> sequences) {
  Case spec = sized({.operation = Operation::paged_attention, .sequences = std::move(sequences), .mask = causal()}, dtype);
  spec.kv_dtype = cache;
  spec.scales = cache == DType::e4m3 ? Scales::per_head : Scales::none;
  return spec;
}

inline void add(Table& table, std::string variant, Case spec, Tier tier = Tier::full) {
  spec.name = fmt::format("{}/{}", name_of(spec.operation), variant);
  spec.tier = tier;
  table.push_back(std::move(spec));
}

inline Case with_dims(Case spec, std::int64_t dqk, std::int64_t dv) {
  spec.dqk = dqk;
  spec.dv = dv;
  return spec;
}

inline Case with_heads(Case spec, std::int64_t head, std::int64_t kv_head) {
  spec.head = head;
  spec.kv_head = kv_head;
  return spec;
}

inline Case with_mask(Case spec, BandMask mask) {
  spec.mask = mask;
  return spec;
}

inline constexpr DType kInputs[] = {DType::f32, DType::f16, DType::bf16, DType::e4m3};

struct Pair {
  std::int64_t first, second;
};
/// Query-key and value widths; a vector register holds 4 to 32 elements, so these leave tails of every kind.
inline constexpr Pair kHeadDims[] = {{8, 8},     {64, 64},  {80, 80}, {96, 96},  {128, 128}, {256, 256}, {192, 128},
                                     {128, 192}, {40, 104}, {8, 256}, {248, 16}, {24, 72},   {120, 120}};
/// Query heads on kv heads: groups of 1, 2, 3, 4, 5, 7, 8, 22 and 64.
inline constexpr Pair kHeads[] = {{3, 3}, {4, 2}, {9, 3}, {8, 2}, {10, 2}, {14, 2}, {16, 2}, {22, 1}, {128, 2}};
inline constexpr std::int64_t kLengths[] = {1,  2,  3,  7,  8,  15, 16,  17,  31,  32,  33,  47,  48,  49,
                                            63, 64, 65, 95, 96, 97, 127, 128, 129, 191, 255, 256, 257, 513};

struct NamedMask {
  const char* name;
  BandMask mask;
};
inline constexpr NamedMask kMasks[] = {
    {"full", {}},
    {"causal", causal()},
    {"causal-top-left", causal(Anchor::top_left)},
    {"window-1", sliding_window(1)},
    {"window-16", sliding_window(16)},
    {"window-larger-than-kv", sliding_window(100000)},
    {"window-both-sides", {.left = 20, .right = 11}},
    {"window-top-left", {.left = 7, .right = 30, .anchor = Anchor::top_left}},
    {"left-only", {.left = 33}},
    {"excludes-diagonal", {.left = 40, .right = -1}},
    {"ahead-only", {.left = -3, .right = 25}},
    {"far-back", {.left = 60, .right = -45}},
    {"far-ahead-top-left", {.left = -50, .right = 90, .anchor = Anchor::top_left}},
    {"nobody-sees", {.left = -5, .right = 2}},
    {"nearly-unbounded", {.left = kUnbounded - 1, .right = kUnbounded - 1}},
};

struct NamedValues {
  const char* name;
  Values values;
  float softcap;
};
/// Each with and without the softcap, and where tanh saturates: |s / cap| exceeds 88 with huge scores under a cap of 1.
inline constexpr NamedValues kValues[] = {
    {"sharp", Values::sharp, 0},
    {"huge-scores", Values::huge_scores, 0},
    {"huge-scores-softcap1", Values::huge_scores, 1},
    {"huge-scores-softcap30", Values::huge_scores, 30},
    {"very-negative-softcap50", Values::very_negative, 50},
    {"softcap30", Values::normal, 30},
    {"softcap50-sharp", Values::sharp, 50},
    {"descending", Values::descending, 0},
    {"ascending", Values::ascending, 0},
    {"very-negative", Values::very_negative, 0},
    {"large-offset", Values::large_offset, 0},
    {"ties", Values::ties, 0},
    {"dominant-key", Values::dominant_key, 0},
    {"nan-value", Values::nan_value, 0},
    {"nan-key", Values::nan_key, 0},
    {"loud-nan-value", Values::loud_nan, 0},
};

/// Scores of either sign far beyond what exp can hold.
struct NamedVast {
  const char* name;
  Vast vast;
  float softcap;
  Sink sink;
};
inline constexpr NamedVast kVast[] = {
    {"1e10", {1.1e10f, Vast::Keys::positive}, 0, Sink::none},
    {"1e10-negative", {1.1e10f, Vast::Keys::negative}, 0, Sink::none},
    {"1e10-few", {1.1e10f, Vast::Keys::few}, 0, Sink::none},
    {"1e10-sink", {1.1e10f, Vast::Keys::positive}, 0, Sink::mixed},
    {"1e10-negative-sink", {1.1e10f, Vast::Keys::negative}, 0, Sink::mixed},
    {"1e20-mixed", {1.1e20f, Vast::Keys::mixed}, 0, Sink::none},
    {"1e36", {5.3e35f, Vast::Keys::positive}, 0, Sink::none},
    {"1e36-negative", {5.3e35f, Vast::Keys::negative}, 0, Sink::none},
    {"1e36-few", {5.3e35f, Vast::Keys::few}, 0, Sink::none},
    {"1e36-mixed-softcap30", {5.3e35f, Vast::Keys::mixed}, 30, Sink::none},
};

inline Case with_vast(Case spec, const NamedVast& of) {
  spec = with_vast(std::move(spec), of.vast);
  spec.softcap = of.softcap;
  spec.sink = of.sink;
  return spec;
}

struct NamedSink {
  const char* name;
  Sink sink;
};
inline constexpr NamedSink kSinks[] = {
    {"finite", Sink::finite}, {"minus-inf", Sink::minus_inf}, {"plus-inf", Sink::plus_inf}, {"mixed", Sink::mixed}};

struct NamedLayout {
  const char* name;
  Layout layout;
};
inline constexpr NamedLayout kLayouts[] = {{"padded", Layout::padded},       {"odd-rows", Layout::odd_rows},
                                           {"unaligned", Layout::unaligned}, {"head-major", Layout::head_major},
                                           {"broadcast", Layout::broadcast}, {"interleaved", Layout::interleaved},
                                           {"beyond-2^31", Layout::far}};

/// Queries and caches of paged attention.
struct CachePair {
  DType q, cache;
};
inline constexpr CachePair kCaches[] = {{DType::f32, DType::f32},   {DType::f16, DType::f16},  {DType::bf16, DType::bf16},
                                        {DType::bf16, DType::e4m3}, {DType::f16, DType::e4m3}, {DType::f32, DType::e4m3}};
inline constexpr std::int64_t kPages[] = {1, 3, 16, 64, 128};

inline std::string cache_name(CachePair pair) {
  return pair.q == pair.cache ? std::string(name_of(pair.q)) : fmt::format("{}-on-{}", name_of(pair.q), name_of(pair.cache));
}

}  // namespace fovea::check
