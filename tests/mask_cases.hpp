// SPDX-License-Identifier: Apache-2.0
/// Packed masks over dense and paged keys: trees of draft tokens, and bits for every key. Some rows see no key, some keys no row does, and
/// those hold NaN.
#pragma once

#include "case_parts.hpp"

namespace fovea::check {

inline Case with_bits(Case spec, MaskBits bits, std::int64_t tail = 0) {
  spec.mask_bits = bits;
  spec.mask_tail = tail;
  return spec;
}

inline void dense_mask_cases(Table& table, DType dtype) {
  const auto name = name_of(dtype);
  const Tier tier = dtype == DType::bf16 ? Tier::quick : Tier::full;
  const auto put = [&](const char* variant, const Case& spec, Tier of) {
    add(table, fmt::format("packed_mask/{}-{}", name, variant), spec, of);
  };
  const Case square = attention(dtype, {{70, 70}, {70, 70}});
  put("every-key", with_bits(square, MaskBits::flat), tier);
  put("every-key-rows", with_bits(square, MaskBits::rows), Tier::full);
  put("every-key-causal", with_bits(with_mask(square, causal()), MaskBits::flat), Tier::full);
  put("every-key-causal-top-left", with_bits(with_mask(attention(dtype, {{40, 290}}), causal(Anchor::top_left)), MaskBits::flat),
      Tier::full);
  put("tail20", with_bits(square, MaskBits::flat, 20), Tier::full);
  put("tail100-longer-than-keys", with_bits(with_mask(square, causal()), MaskBits::rows, 100), tier);
  put("wide-window", with_bits(with_mask(with_dims(attention(dtype, {{50, 290}}), 32, 32), sliding_window(90)), MaskBits::flat),
      Tier::full);
  put("tall", with_bits(with_dims(attention(dtype, {{290, 50}}), 32, 32), MaskBits::rows), Tier::full);
  put("nobody-sees", with_bits(with_mask(square, {.left = -5, .right = 2}), MaskBits::flat), Tier::full);
  Case mixed = ragged(dtype, {{5, 5}, {0, 9}, {64, 64}, {1, 130}, {33, 0}, {17, 49}, {1, 1}}, causal());
  mixed.padding_rows = 6;
  put("ragged", with_bits(mixed, MaskBits::flat), tier);
  put("ragged-tail16-rows", with_bits(mixed, MaskBits::rows, 16), tier);
  Case hostile = with_bits(with_heads(attention(dtype, {{66, 200}}), 14, 2), MaskBits::flat);
  hostile.sink = Sink::mixed;
  hostile.softcap = 30;
  put("sink-softcap", hostile, tier);
  for (const auto& [variant, values] :
       {std::pair{"nan-value", Values::nan_value}, {"nan-key", Values::nan_key}, {"loud-nan", Values::loud_nan}}) {
    hostile.values = values;
    hostile.softcap = 0;
    hostile.sink = Sink::none;
    put(variant, hostile, Tier::full);
  }
  for (const auto [dqk, dv] : {Pair{128, 128}, {256, 256}, {192, 128}, {40, 104}})
    add(table, fmt::format("packed_mask/{}-{}x{}", name, dqk, dv),
        with_bits(with_dims(attention(dtype, {{130, 270}}, causal()), dqk, dv), MaskBits::flat), Tier::full);
}

inline void paged_mask_cases(Table& table, CachePair pair) {
  const auto name = cache_name(pair);
  const Tier tier = pair.q == DType::bf16 ? Tier::quick : Tier::full;
  const auto put = [&](std::string_view variant, const Case& spec, Tier of) {
    add(table, fmt::format("packed_mask/{}-{}", name, variant), spec, of);
  };
  const std::vector<Sequence> trees{{8, 600}, {16, 40}, {33, 900}, {64, 130}, {1, 0}, {0, 5}, {3, 2}, {1, 70}};
  const Case tree = with_heads(paged(pair.q, pair.cache, trees), 8, 2);
  for (const std::int64_t page : {3, 16, 64}) {
    Case spec = with_bits(tree, MaskBits::rows, 64);
    spec.page = page;
    put(fmt::format("tree-page{}", page), spec, page == 16 ? tier : Tier::full);
  }
  put("tree-flat", with_bits(tree, MaskBits::flat, 64), tier);
  if (pair.cache == DType::e4m3) {
    Case nan = with_bits(with_heads(paged(pair.q, pair.cache, {{40, 2}, {34, 20}}), 4, 2), MaskBits::flat);
    nan.nan_scale = true;
    put("nan-scale", with_mask(nan, {}), tier);
  }
  put("every-key", with_bits(tree, MaskBits::flat), tier);
  put("every-key-no-band", with_bits(with_mask(tree, {}), MaskBits::flat), Tier::full);
  put("window", with_bits(with_mask(tree, sliding_window(40)), MaskBits::rows, 33), Tier::full);
  put("mha", with_bits(with_heads(tree, 3, 3), MaskBits::rows, 16), Tier::full);
  put("64on2", with_bits(with_heads(tree, 64, 2), MaskBits::rows, 64), Tier::full);
  Case split = with_bits(paged(pair.q, pair.cache, {{8, 3000}, {5, 2500}}), MaskBits::rows, 8);
  put("split", split, tier);
  split.mask_tail = 2900;
  split.sink = Sink::mixed;
  put("split-long-tail-sink", split, Tier::full);
  for (const auto& [variant, values] :
       {std::pair{"nan-value", Values::nan_value}, {"nan-key", Values::nan_key}, {"loud-nan", Values::loud_nan}}) {
    split.values = values;
    split.sink = Sink::none;
    put(variant, split, Tier::full);
  }
  Case capped = with_bits(tree, MaskBits::flat, 20);
  capped.softcap = 30;
  put("softcap", capped, Tier::full);
  std::vector<Sequence> many;
  for (std::int64_t i = 0; i < 40; ++i) many.push_back({i % 7 == 3 ? 0 : 4, 4 + 61 * i % 410});
  put("many", with_bits(with_heads(paged(pair.q, pair.cache, many), 16, 4), MaskBits::rows, 4), Tier::full);
  for (const auto [dqk, dv] : {Pair{128, 128}, {256, 256}, {192, 128}, {40, 104}})
    put(fmt::format("{}x{}", dqk, dv), with_bits(with_dims(tree, dqk, dv), MaskBits::rows, 64), Tier::full);
}

inline void mask_cases(Table& table) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) dense_mask_cases(table, dtype);
  for (const CachePair pair : kCaches) paged_mask_cases(table, pair);
}

}  // namespace fovea::check
