// SPDX-License-Identifier: Apache-2.0
/// The case table of attention, paged attention, appending and merging; latent_cases.hpp and backward_cases.hpp have the others.
/// Conformance tests, `fovea check` and `fovea bench` all read them. Small functions make families of cases. Names are
/// "operation/family/variant" and must not change, because results are filed under them.
#pragma once

#include "block_cases.hpp"
#include "case_parts.hpp"
#include "kv_cases.hpp"
#include "mask_cases.hpp"
#include "range_cases.hpp"
#include "scale_cases.hpp"
#include "score_bias_cases.hpp"
#include "tile_cases.hpp"
#include "wide_cases.hpp"

namespace fovea::check {

// Shared by both attentions ------------------------------------------------------------------------------------------

/// Widths, groups, values and sinks do not depend on where K and V lie; `make(dtype)` gives the case to vary.
template <class Make>
void shared_families(Table& table, std::initializer_list<DType> dtypes, Make make) {
  for (const DType dtype : dtypes) {
    const auto name = name_of(dtype);
    for (const auto [dqk, dv] : kHeadDims) {
      const bool common = dqk == dv && dqk >= 64 && dqk <= 128;
      add(table, fmt::format("head_dim/{}-{}x{}", name, dqk, dv), with_dims(make(dtype), dqk, dv), common ? Tier::quick : Tier::full);
    }
    for (const auto [head, kv_head] : kHeads) {
      const bool quick = head <= 9;
      add(table, fmt::format("gqa/{}-{}on{}", name, head, kv_head), with_heads(with_dims(make(dtype), 32, 32), head, kv_head),
          quick ? Tier::quick : Tier::full);
    }
    for (const auto& [values_name, values, softcap] : kValues) {
      Case spec = make(dtype);
      spec.values = values;
      spec.softcap = softcap;
      add(table, fmt::format("values/{}-{}", name, values_name), spec, dtype == DType::f16 ? Tier::full : Tier::quick);
    }
    for (const NamedVast& vast : kVast)
      add(table, fmt::format("vast/{}-{}", name, vast.name), with_vast(make(dtype), vast), dtype == DType::f16 ? Tier::full : Tier::quick);
    for (const auto& [sink_name, sink] : kSinks) {
      Case spec = make(dtype);
      spec.sink = sink;
      add(table, fmt::format("sink/{}-{}", name, sink_name), spec, dtype == DType::bf16 ? Tier::quick : Tier::full);
    }
  }
}

// Dense attention ----------------------------------------------------------------------------------------------------

inline void attention_lengths(Table& table) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto name = name_of(dtype);
    for (const std::int64_t n : kLengths) {
      const Tier tier = n < 130 && dtype == DType::bf16 ? Tier::quick : Tier::full;
      add(table, fmt::format("lengths/{}-{}x{}-causal", name, n, n), with_dims(attention(dtype, {{n, n}}, causal()), 32, 32), tier);
      add(table, fmt::format("lengths/{}-1x{}", name, n), with_dims(attention(dtype, {{1, n}, {1, n}}), 32, 32), tier);
      add(table, fmt::format("lengths/{}-{}x37", name, n), with_dims(attention(dtype, {{n, 37}}), 32, 32), tier);
    }
    for (const Sequence s : {Sequence{0, 5}, {5, 0}, {0, 0}})
      add(table, fmt::format("lengths/{}-{}x{}", name, s.q, s.kv), attention(dtype, {s, s}, causal()), Tier::quick);
    add(table, fmt::format("lengths/{}-no-batch", name), attention(dtype, {}), Tier::quick);
    add(table, fmt::format("lengths/{}-prefix-97-extension-37", name), attention(dtype, {{37, 134}}, causal()), Tier::quick);
    add(table, fmt::format("lengths/{}-more-queries-than-keys", name), attention(dtype, {{130, 40}}, causal()), Tier::quick);
  }
  Case longest = with_heads(with_dims(attention(DType::bf16, {{5000, 5000}}, causal()), 32, 32), 1, 1);
  add(table, "lengths/bf16-5000-causal", longest);
  longest.sequences = {{4097, 4097}};
  add(table, "lengths/f32-4097x4097", with_mask(with_dims(sized(longest, DType::f32), 8, 8), {}));
}

inline void attention_masks(Table& table) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tier tier = dtype == DType::bf16 ? Tier::quick : Tier::full;
    for (const auto& [name, mask] : kMasks) {
      add(table, fmt::format("mask/{}-{}", name_of(dtype), name), with_dims(attention(dtype, {{70, 70}}, mask), 32, 32), tier);
      add(table, fmt::format("mask/{}-{}-wide", name_of(dtype), name), with_dims(attention(dtype, {{50, 290}}, mask), 32, 32));
      add(table, fmt::format("mask/{}-{}-tall", name_of(dtype), name), with_dims(attention(dtype, {{290, 50}}, mask), 32, 32));
    }
  }
}

inline void attention_layouts(Table& table) {
  for (const DType dtype : kInputs)
    for (const auto& [name, layout] : kLayouts) {
      if (layout == Layout::interleaved) continue;
      Case spec = attention(dtype, {{34, 75}, {34, 75}, {34, 75}}, causal());
      spec.layout = layout;
      const Tier tier = layout != Layout::far && dtype == DType::bf16 ? Tier::quick : Tier::full;
      add(table, fmt::format("layout/{}-{}", name_of(dtype), name), spec, tier);
      if (layout == Layout::far) continue;
      spec.ragged = true;
      spec.padding_rows = 3;
      add(table, fmt::format("layout/{}-{}-ragged", name_of(dtype), name), spec, tier);
    }
}

inline void attention_ragged(Table& table) {
  for (const DType dtype : kInputs) {
    const auto name = name_of(dtype);
    Case mixed = ragged(dtype, {{5, 5}, {0, 9}, {64, 64}, {1, 130}, {33, 0}, {17, 49}, {1, 1}}, causal());
    mixed.padding_rows = 6;
    add(table, fmt::format("ragged/{}-mixed", name), mixed, Tier::quick);
    add(table, fmt::format("ragged/{}-window", name), with_mask(mixed, sliding_window(20)));
    add(table, fmt::format("ragged/{}-top-left", name), with_mask(mixed, causal(Anchor::top_left)));
    add(table, fmt::format("ragged/{}-one-long", name), with_dims(ragged(dtype, {{1, 1}, {3, 2}, {2, 7812}, {4, 4}, {1, 63}}), 32, 32));
    Case quiet = ragged(dtype, {{9, 21}, {40, 40}}, causal());
    quiet.lse = false;
    quiet.scale = 0.3f;
    add(table, fmt::format("ragged/{}-no-lse-own-scale", name), quiet, Tier::quick);
  }
  add(table, "ragged/bf16-no-batch", ragged(DType::bf16, {}), Tier::quick);
}

// Paged attention ----------------------------------------------------------------------------------------------------

inline void paged_lengths(Table& table) {
  for (const CachePair pair : kCaches)
    for (const std::int64_t page : kPages) {
      const Tier tier = pair.q == DType::bf16 && page != 128 ? Tier::quick : Tier::full;
      Case spec = paged(pair.q, pair.cache, {{1, 0}, {1, 1}, {1, page - 1}, {1, page}, {1, page + 1}, {0, 5}, {1, 5 * page + 2}});
      spec.page = page;
      add(table, fmt::format("decode/{}-page{}", cache_name(pair), page), spec, tier);
      spec.sequences = {{1, 40}, {37, 134}, {4, 70}, {0, 0}, {50, 50}, {1, 1}, {5, 3}};
      spec.padding_rows = 4;
      add(table, fmt::format("mixed/{}-page{}", cache_name(pair), page), spec, tier);
      spec.padding_rows = 0;
      spec.sequences = {{1, 12}, {1, 7812}, {1, 3}, {2, 65}, {1, 130}};
      add(table, fmt::format("one-long/{}-page{}", cache_name(pair), page), with_dims(spec, 32, 32));
    }
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto name = name_of(dtype);
    add(table, fmt::format("split/{}-one-sequence", name), paged(dtype, dtype, {{1, 3000}}), Tier::quick);
    add(table, fmt::format("split/{}-speculative", name), paged(dtype, dtype, {{4, 2500}, {3, 900}}));
    add(table, fmt::format("split/{}-mha", name), with_heads(paged(dtype, dtype, {{1, 1500}}), 3, 3));
    Case windowed = with_mask(paged(dtype, dtype, {{1, 3000}, {1, 200}}), sliding_window(500));
    add(table, fmt::format("split/{}-window", name), windowed);
    windowed.values = Values::descending;
    add(table, fmt::format("split/{}-window-descending", name), windowed);
    for (const std::int64_t n : kLengths) {
      const Case spec = with_dims(paged(dtype, dtype, {{n, n}, {n, n + 65}}), 32, 32);
      add(table, fmt::format("prefill/{}-{}", name, n), spec, n < 66 ? Tier::quick : Tier::full);
    }
  }
  add(table, "decode/bf16-no-batch", paged(DType::bf16, DType::bf16, {}), Tier::quick);
}

/// So many sequences that a GPU's CTA may take two kv heads: of one or two query tokens, of three, and behind a window.
inline void paged_many(Table& table) {
  for (const CachePair pair : kCaches) {
    std::vector<Sequence> decodes, speculative;
    for (std::int64_t i = 0; i < 40; ++i) {
      decodes.push_back({1 + (i % 9 == 4 ? 1 : 0), 97 * i % 830});
      speculative.push_back({i % 7 == 3 ? 0 : 3, 3 + 61 * i % 410});
    }
    const auto name = cache_name(pair);
    const Tier tier = pair.q == DType::bf16 ? Tier::quick : Tier::full;
    Case spec = with_heads(paged(pair.q, pair.cache, decodes), 8, 2);
    add(table, fmt::format("many/{}-decodes", name), spec, tier);
    spec = with_mask(spec, sliding_window(200));
    spec.values = Values::descending;
    add(table, fmt::format("many/{}-window", name), spec, tier);
    add(table, fmt::format("many/{}-speculative", name), with_heads(paged(pair.q, pair.cache, speculative), 16, 4));
  }
}

inline void paged_masks(Table& table) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const auto& [name, mask] : kMasks) {
      if (mask.anchor == Anchor::top_left) continue;
      const Case spec = with_mask(paged(dtype, dtype, {{1, 90}, {60, 60}, {30, 150}}), mask);
      add(table, fmt::format("mask/{}-{}", name_of(dtype), name), with_dims(spec, 32, 32), dtype == DType::bf16 ? Tier::quick : Tier::full);
    }
}

inline void paged_layouts(Table& table) {
  for (const CachePair pair : kCaches)
    for (const auto& [name, layout] : kLayouts) {
      Case spec = paged(pair.q, pair.cache, {{1, 75}, {34, 75}, {2, 33}});
      spec.layout = layout;
      const bool quick = layout != Layout::far && pair.q == DType::bf16;
      add(table, fmt::format("layout/{}-{}", cache_name(pair), name), spec, quick ? Tier::quick : Tier::full);
    }
  paged_scales(table);
  Case shared = paged(DType::bf16, DType::bf16, {{1, 100}, {3, 100}, {20, 90}});
  shared.shared_prefix = true;
  add(table, "layout/bf16-shared-prefix", shared, Tier::quick);
}

/// Rows without keys give 0 and -inf whatever their sink is: all rows, and some rows.
inline void unseen_sinks(Table& table) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto name = name_of(dtype);
    for (const auto& [sink_name, sink] : kSinks) {
      Case nobody = with_heads(attention(dtype, {{70, 70}}, {.left = -5, .right = 2}), 5, 1), some = nobody;
      nobody.sink = some.sink = sink;
      some.sequences = {{130, 40}};
      some.mask = causal();
      add(table, fmt::format("sink/{}-{}-nobody-sees", name, sink_name), with_dims(nobody, 32, 32), Tier::quick);
      add(table, fmt::format("sink/{}-{}-some-see", name, sink_name), with_dims(some, 32, 32), Tier::quick);
      Case empty = with_heads(paged(dtype, dtype, {{1, 0}, {3, 1}, {0, 0}, {40, 7}, {1, 2100}}), 5, 1);
      empty.sink = sink;
      add(table, fmt::format("sink/{}-{}-some-see", name, sink_name), with_dims(empty, 32, 32), Tier::quick);
    }
  }
}

/// One key, whose weight is exactly one, and enough keys to be split.
inline void vast_lengths(Table& table) {
  for (const DType dtype : kInputs)
    for (const NamedVast& vast : kVast) {
      if (vast.softcap != 0 || vast.sink != Sink::none || vast.vast.keys == Vast::Keys::few) continue;
      const std::string name = fmt::format("vast/{}-{}", name_of(dtype), vast.name);
      const DType q = dtype == DType::e4m3 ? DType::bf16 : dtype;
      add(table, name + "-one-key", with_vast(attention(dtype, {{3, 1}, {3, 1}}), vast), Tier::quick);
      add(table, name + "-one-key", with_vast(paged(q, dtype, {{1, 1}, {2, 1}}), vast), Tier::quick);
      add(table, name + "-split", with_vast(paged(q, dtype, {{1, 3000}}), vast));
    }
}

// Appending and merging ----------------------------------------------------------------------------------------------

inline void append_cases(Table& table) {
  constexpr CachePair kAppends[] = {{DType::f32, DType::f32},  {DType::f16, DType::f16},  {DType::bf16, DType::bf16},
                                    {DType::f32, DType::e4m3}, {DType::f16, DType::e4m3}, {DType::bf16, DType::e4m3}};
  for (const CachePair pair : kAppends) {
    Case base = sized({.operation = Operation::paged_cache_append, .sequences = {{41, 0}}, .lse = false}, pair.q);
    base.kv_dtype = pair.cache;
    base.scales = pair.cache == DType::e4m3 ? Scales::per_head : Scales::none;
    for (const std::int64_t page : kPages) {
      base.page = page;
      add(table, fmt::format("page/{}-page{}", cache_name(pair), page), base, Tier::quick);
    }
    base.page = 16;
    for (const auto& [name, layout] : kLayouts) {
      if (layout == Layout::broadcast) continue;
      Case spec = base;
      spec.layout = layout;
      add(table, fmt::format("layout/{}-{}", cache_name(pair), name), spec, layout == Layout::far ? Tier::full : Tier::quick);
    }
    add(table, fmt::format("head_dim/{}-192x128", cache_name(pair)), with_dims(base, 192, 128));
    add(table, fmt::format("head_dim/{}-8x24", cache_name(pair)), with_heads(with_dims(base, 8, 24), 1, 1));
    Case spec = base;
    spec.values = Values::huge_scores;  // saturates e4m3
    add(table, fmt::format("values/{}-large", cache_name(pair)), spec, Tier::quick);
    spec.values = Values::nan_value;
    add(table, fmt::format("values/{}-nan", cache_name(pair)), spec, Tier::quick);
    spec.sequences = {{0, 0}};
    add(table, fmt::format("rows/{}-none", cache_name(pair)), spec, Tier::quick);
    if (pair.cache != DType::e4m3) continue;
    spec = base;
    spec.scales = Scales::none;
    add(table, fmt::format("scales/{}-none", cache_name(pair)), spec, Tier::quick);
    spec.scales = Scales::one_value;
    add(table, fmt::format("scales/{}-one", cache_name(pair)), spec, Tier::quick);
  }
}

inline void merge_cases(Table& table) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const auto name = name_of(dtype);
    Case base = sized({.operation = Operation::merge_states, .head = 5, .sequences = {{23, 0}}}, dtype);
    for (const int parts : {1, 2, 3, 8, 33, 130}) {
      Case spec = base;
      spec.parts = parts;
      add(table, fmt::format("parts/{}-{}", name, parts), spec, Tier::quick);
      spec.empties = Empties::some;
      add(table, fmt::format("empty/{}-some-of-{}", name, parts), spec, Tier::quick);
      spec.empties = Empties::all;
      add(table, fmt::format("empty/{}-all-of-{}", name, parts), spec);
    }
    for (const Layout layout : {Layout::padded, Layout::odd_rows, Layout::unaligned, Layout::head_major}) {
      Case spec = base;
      spec.layout = layout;
      spec.empties = Empties::some;
      add(table, fmt::format("layout/{}-{}", name, kLayouts[static_cast<std::size_t>(layout) - 1].name), spec, Tier::quick);
    }
    for (const NamedVast& vast : kVast) {
      if (vast.softcap == 0 && vast.sink == Sink::none)
        add(table, fmt::format("vast/{}-{}", name, vast.name), with_vast(base, vast), Tier::quick);
    }
    for (const auto& [values_name, values] : {std::pair{"far-apart", Values::huge_scores}, {"very-negative", Values::very_negative}}) {
      Case spec = base;
      spec.values = values;
      add(table, fmt::format("values/{}-{}", name, values_name), spec, Tier::quick);
    }
    Case spec = base;
    spec.in_place = true;
    spec.empties = Empties::some;
    add(table, fmt::format("in_place/{}", name), spec, Tier::quick);
    spec = base;
    spec.lse = false;
    add(table, fmt::format("rows/{}-no-lse", name), spec, Tier::quick);
    spec.sequences = {{0, 0}};
    add(table, fmt::format("rows/{}-none", name), spec, Tier::quick);
    for (const std::int64_t dv : {8, 24, 128, 256}) add(table, fmt::format("head_dim/{}-{}", name, dv), with_dims(base, dv, dv));
  }
}

// Benchmarks ---------------------------------------------------------------------------------------------------------

inline std::vector<Sequence> decodes(std::size_t batch, std::int64_t kv) { return std::vector<Sequence>(batch, Sequence{1, kv}); }

/// Large cases that are timed; docs/performance.md names them so.
inline void bench_cases(Table& table) {
  const auto bench = [&](const char* variant, Case spec, std::int64_t head, std::int64_t kv_head, std::int64_t dim) {
    spec.lse = false;
    add(table, fmt::format("bench/{}", variant), with_heads(with_dims(std::move(spec), dim, dim), head, kv_head), Tier::bench);
  };
  bench("prefill-bf16-d128-h32x8-s4096-causal", attention(DType::bf16, {{4096, 4096}}, causal()), 32, 8, 128);
  bench("prefill-bf16-d128-h32x8-s4096-full", attention(DType::bf16, {{4096, 4096}}), 32, 8, 128);
  bench("prefill-f32-d64-h16-s1024-full", attention(DType::f32, {{1024, 1024}}), 16, 16, 64);
  bench("prefill-f32-d64-h16-s1024-causal", attention(DType::f32, {{1024, 1024}}, causal()), 16, 16, 64);
  bench("prefill-bf16-d64-h16-s1024-full", attention(DType::bf16, {{1024, 1024}}), 16, 16, 64);
  bench("prefill-f16-d128-h32x8-s2048-causal", attention(DType::f16, {{2048, 2048}}, causal()), 32, 8, 128);

  const DType bf16 = DType::bf16;
  bench("decode-bf16-d128-h32x8-page16-b16-kv4096", paged(bf16, bf16, decodes(16, 4096)), 32, 8, 128);
  bench("decode-bf16-d128-h32x8-page16-b1-kv32768", paged(bf16, bf16, decodes(1, 32768)), 32, 8, 128);
  bench("decode-bf16-d128-h32-page16-b16-kv1024", paged(bf16, bf16, decodes(16, 1024)), 32, 32, 128);
  bench("decode-bf16-on-e4m3-d128-h32x8-page16-b16-kv4096", paged(bf16, DType::e4m3, decodes(16, 4096)), 32, 8, 128);
  bench("decode-f16-d128-h32x8-page16-b16-kv4096", paged(DType::f16, DType::f16, decodes(16, 4096)), 32, 8, 128);
  bench("decode-f32-d64-h9x3-page16-b8-kv2048", paged(DType::f32, DType::f32, decodes(8, 2048)), 9, 3, 64);
  auto mixed = decodes(31, 4096);
  bench("mixed-bf16-d128-h32x8-decodes-alone", paged(bf16, bf16, mixed), 32, 8, 128);
  mixed.push_back({2048, 2048});
  bench("mixed-bf16-d128-h32x8-together", paged(bf16, bf16, mixed), 32, 8, 128);
  bench("mixed-bf16-d128-h32x8-prefill-alone", paged(bf16, bf16, {{2048, 2048}}), 32, 8, 128);
  bench("one-token-bf16-d64-h8x2", paged(bf16, bf16, decodes(1, 1)), 8, 2, 64);

  Case append = sized({.operation = Operation::paged_cache_append, .sequences = {{4096, 0}}}, bf16);
  bench("append-bf16-d128-h8-rows4096", append, 8, 8, 128);
  append.kv_dtype = DType::e4m3;
  append.scales = Scales::per_head;
  bench("append-bf16-to-e4m3-d128-h8-rows4096", append, 8, 8, 128);
  Case merge = sized({.operation = Operation::merge_states, .sequences = {{4096, 0}}, .parts = 4}, bf16);
  bench("merge-bf16-d128-h32-rows4096-parts4", merge, 32, 32, 128);
}

inline Table case_table() {
  Table table;
  shared_families(table, {DType::f32, DType::f16, DType::bf16, DType::e4m3}, [](DType dtype) {
    return attention(dtype, {{33, 150}, {33, 150}}, causal());
  });
  attention_lengths(table);
  attention_masks(table);
  attention_tiles(table);
  split_key_tiles(table);
  attention_layouts(table);
  attention_ragged(table);
  attention_score_bias(table);
  attention_scales(table);
  attention_range(table);
  attention_blocks(table);
  shared_families(table, {DType::f32, DType::f16, DType::bf16, DType::e4m3}, [](DType dtype) {
    return paged(dtype == DType::e4m3 ? DType::bf16 : dtype, dtype, {{1, 150}, {20, 20}, {33, 95}});
  });
  paged_lengths(table);
  paged_many(table);
  paged_masks(table);
  paged_layouts(table);
  paged_tiles(table);
  paged_mixtures(table);
  many_query_tiles(table);
  paged_range(table);
  unseen_sinks(table);
  vast_lengths(table);
  append_cases(table);
  merge_cases(table);
  wide_cases(table);
  kv_cases(table);
  mask_cases(table);
  bench_cases(table);
  return table;
}

}  // namespace fovea::check
