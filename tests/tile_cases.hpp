// SPDX-License-Identifier: Apache-2.0
/// The part of tests/cases.hpp on dense and paged attention over many tiles, whose widths GPU kernels choose by head dim.
#pragma once

#include "case_parts.hpp"

namespace fovea::check {

/// Values are transposed tile by tile: ends around tiles of 128 and 192 keys, sequences without any, results in f32 whole and merged.
inline void e4m3_tiles(Table& table) {
  const auto wide = [](Case spec) { return with_heads(with_dims(std::move(spec), 128, 128), 2, 2); };
  for (const std::int64_t n : {127, 128, 129, 191, 192, 193, 383, 384, 385})
    add(table, fmt::format("tiles/e4m3-{}-causal", n), wide(attention(DType::e4m3, {{n, n}}, causal())),
        n < 193 ? Tier::quick : Tier::full);
  Case spec = wide(ragged(DType::e4m3, {{5, 191}, {3, 0}, {64, 192}, {0, 7}, {1, 193}, {130, 1}, {17, 577}, {2, 128}}, causal()));
  spec.padding_rows = 3;
  add(table, "tiles/e4m3-ragged", spec, Tier::quick);
  spec.out_dtype = DType::f32;
  add(table, "tiles/e4m3-ragged-out-f32", spec);
  for (const auto& [name, values] : {std::pair{"nan-value", Values::nan_value}, {"nan-key", Values::nan_key}}) {
    spec = wide(attention(DType::e4m3, {{300, 400}}, {.left = 100, .right = 0}));
    spec.values = values;
    add(table, fmt::format("tiles/e4m3-{}-window", name), spec);
    spec.out_dtype = DType::f32;
    add(table, fmt::format("tiles/e4m3-{}-window-out-f32", name), spec);
  }
  for (const DType out : {DType::bf16, DType::f32}) {
    spec = with_heads(with_dims(attention(DType::e4m3, {{3, 3000}}, causal()), 128, 128), 8, 2);
    spec.out_dtype = out;
    add(table, fmt::format("tiles/e4m3-few-queries-out-{}", name_of(out)), spec, Tier::quick);
  }
  // Sums over more keys than a matrix unit of e4m3 can add alone; ragged batches are not split.
  spec = wide(ragged(DType::e4m3, {{2, 20000}}));
  spec.values = Values::positive;
  add(table, "tiles/e4m3-long-sums", spec);
}

/// Long enough for clusters that share key tiles: ends inside of a CTA's part of keys, a CTA without queries.
inline void shared_key_tiles(Table& table) {
  constexpr Pair kShared[] = {{192, 128}, {256, 200}};
  for (const auto [dqk, dv] : kShared) {
    const auto shared = [&](DType dtype, std::int64_t q, std::int64_t n, Values values, const char* suffix) {
      Case spec = with_heads(with_dims(attention(dtype, {{q, n}}), dqk, dv), 5, 1);
      spec.values = values;
      add(table, fmt::format("tiles/{}-{}x{}-shared-keys{}", name_of(dtype), dqk, dv, suffix), spec);
    };
    shared(DType::bf16, 4240, 180, Values::normal, "");
    shared(DType::f16, 4100, 100, Values::normal, "");
    shared(DType::bf16, 4100, 100, Values::nan_value, "-nan-value");
  }
}

/// Splits that begin more than a key tile behind the keys of some rows. A query tile of 192 rows sees
/// three key tiles of 112, in three splits. Its first 64 rows see one of them. Under a causal mask alone, such
/// tiles begin where no call is split, so the mask has a window, wider than all keys.
inline void split_key_tiles(Table& table) {
  const Case spec = attention(DType::bf16, {{8192, 4008}}, {.left = 8192, .right = 0});
  add(table, "tiles/bf16-192x128-split-past-rows", with_heads(with_dims(spec, 192, 128), 1, 1));
}

/// Many tiles of queries and keys, with ends inside of them; two queries to a cluster where nothing is masked.
inline void attention_tiles(Table& table) {
  shared_key_tiles(table);
  constexpr Pair kTiled[] = {{64, 64}, {96, 96}, {128, 128}, {192, 128}, {192, 192}, {256, 256}};
  for (const auto [dqk, dv] : kTiled) {
    const auto add_tiled = [&](const char* name, Case spec) {
      add(table, fmt::format("tiles/{}-{}x{}-{}", name_of(spec.dtype), dqk, dv, name), with_heads(with_dims(spec, dqk, dv), 2, 1));
    };
    add_tiled("full", attention(DType::bf16, {{600, 700}, {600, 700}}));
    add_tiled("causal", attention(DType::bf16, {{577, 640}}, causal()));
    add_tiled("window", attention(DType::bf16, {{450, 800}}, {.left = 150, .right = 40}));
    add_tiled("full", attention(DType::f16, {{513, 385}}));
    add_tiled("full", attention(DType::e4m3, {{449, 700}, {449, 700}}));
    add_tiled("causal", attention(DType::e4m3, {{577, 640}}, causal()));
    add_tiled("window", attention(DType::e4m3, {{450, 800}}, {.left = 150, .right = 40}));
  }
  // Tiles of columns past one of the head dims; clusters whose second tile has neither queries nor keys.
  constexpr Pair kUneven[] = {{64, 128}, {128, 64}, {40, 112}, {192, 64}, {256, 64}};
  for (const auto [dqk, dv] : kUneven) {
    const Case spec = with_heads(with_dims(attention(DType::bf16, {{513, 130}}), dqk, dv), 2, 1);
    add(table, fmt::format("tiles/bf16-{}x{}-uneven", dqk, dv), spec, Tier::quick);
  }
  // The most keys of a CTA without roles, and of a cluster of eight.
  for (const std::int64_t n : {255, 256, 257, 2048, 2049}) {
    Case spec = with_heads(with_dims(attention(DType::bf16, {{70, n}}, causal()), 128, 128), 4, 2);
    add(table, fmt::format("tiles/bf16-one-wave-of-{}", n), spec);
    spec.values = Values::nan_value;
    add(table, fmt::format("tiles/bf16-one-wave-of-{}-nan-value", n), spec);
  }
  // More heads of a kv head than a warpgroup has rows.
  for (const auto& [q, n] : {std::pair{1, 200}, {1, 700}, {2, 700}, {1, 3000}}) {
    const Case spec = with_heads(with_dims(attention(DType::bf16, {{q, n}}, causal()), 128, 128), 128, 1);
    add(table, fmt::format("tiles/bf16-{}x{}-128-heads-of-one", q, n), spec);
  }
  // Calls of 34 query tiles, whose key tiles take turns in the shared memory of two CTAs.
  constexpr Pair kTurns[] = {{64, 64}, {128, 128}, {192, 128}, {256, 256}};
  for (const auto [dqk, dv] : kTurns)
    for (const DType dtype : {DType::bf16, DType::f16}) {
      Case spec = with_heads(with_dims(attention(dtype, {{70, 1100}}, causal()), dqk, dv), 34, 17);
      add(table, fmt::format("tiles/{}-{}x{}-turns", name_of(dtype), dqk, dv), spec);
      spec.values = Values::nan_value;
      add(table, fmt::format("tiles/{}-{}x{}-turns-nan-value", name_of(dtype), dqk, dv), spec);
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
  e4m3_tiles(table);
  const Case few = with_heads(with_dims(attention(DType::bf16, {{3, 3000}}, causal()), 128, 128), 8, 2);
  add(table, "tiles/bf16-few-queries", few, Tier::quick);
  add(table, "tiles/bf16-few-queries-nan-value", [&] {
    Case spec = few;
    spec.values = Values::nan_value;
    return spec;
  }());
}

/// Query tiles of many rows over pages: smaller and larger than a key tile, and of sizes that neither divide it nor are divided by it.
inline void paged_tiles(Table& table) {
  const auto tiled = [](DType dtype, std::int64_t page, Pair dims) {
    Case spec = paged(dtype, dtype, {{33, 300}, {1, 129}, {128, 128}, {0, 9}, {97, 511}, {65, 64}, {1, 0}, {127, 385}});
    spec.page = page;
    return with_heads(with_dims(std::move(spec), dims.first, dims.second), 4, 1);
  };
  for (const std::int64_t page : {8, 48, 256})
    add(table, fmt::format("tiles/bf16-128x128-page{}", page), tiled(DType::bf16, page, {128, 128}), Tier::quick);
  for (const Pair dims : {Pair{64, 64}, Pair{192, 128}, Pair{256, 256}, Pair{40, 112}})
    add(table, fmt::format("tiles/bf16-{}x{}-page16", dims.first, dims.second), tiled(DType::bf16, 16, dims));
  add(table, "tiles/f16-128x128-page32", tiled(DType::f16, 32, {128, 128}));
  // Boxes that end inside of a slice: between heads, at a page's end, and at the cache's.
  for (const auto& [name, layout] :
       {std::pair{"heads", Layout::contiguous}, {"padded", Layout::padded}, {"interleaved", Layout::interleaved}}) {
    Case spec = with_heads(tiled(DType::bf16, 16, {96, 96}), 6, 3);
    spec.layout = layout;
    add(table, fmt::format("tiles/bf16-96x96-{}", name), spec, Tier::quick);
    spec.values = Values::nan_key;
    add(table, fmt::format("tiles/bf16-96x96-{}-nan-key", name), spec);
  }
  add(table, "tiles/f16-96x96-page64", tiled(DType::f16, 64, {96, 96}));
  for (const auto& [name, values] : {std::pair{"nan-value", Values::nan_value}, {"nan-key", Values::nan_key}}) {
    Case spec = with_mask(tiled(DType::bf16, 16, {128, 128}), sliding_window(100));
    spec.values = values;
    add(table, fmt::format("tiles/bf16-{}-window", name), spec, Tier::quick);
    add(table, fmt::format("tiles/bf16-{}-one-head", name), with_heads(spec, 3, 3));
  }
  Case capped = tiled(DType::bf16, 16, {128, 128});
  capped.softcap = 4000;
  add(table, "tiles/bf16-softcap4000", capped);
}

/// More query tiles than a device has multiprocessors: CTAs draw tickets, or take pairs in rounds, and the last tiles longest first. On 132
/// of them that begins inside a head of `several`, and far into `dozens`; of `many`, too many sequences are left for it.
inline void many_query_tiles(Table& table) {
  std::vector<Sequence> several, dozens, many;
  for (std::int64_t i = 0; i < 18; ++i) several.push_back({i % 5 == 2 ? 0 : 7 + 61 * i % 420, 90 + 53 * i % 350});
  several[3] = {900, 700};
  for (std::int64_t i = 0; i < 45; ++i) dozens.push_back({1 + 5 * i % 31, 3 * i % 70});
  for (std::int64_t i = 0; i < 125; ++i) many.push_back({1 + 5 * i % 31, 3 * i % 70});
  const auto add_both = [&](const char* name, const std::vector<Sequence>& sequences, std::int64_t heads) {
    const auto sized = [&](const Case& spec) { return with_heads(with_dims(spec, 16, 16), heads, heads); };
    add(table, fmt::format("tiles/bf16-{}-of-many-tiles", name), sized(ragged(DType::bf16, sequences, causal())));
    add(table, fmt::format("tiles/bf16-{}-of-many-tiles", name), sized(paged(DType::bf16, DType::bf16, sequences)));
  };
  add_both("several", several, 32);
  add_both("dozens", dozens, 12);
  add_both("many", many, 4);
  const Case tall = ragged(DType::bf16, {{1, 1}, {2300, 2300}, {0, 5}, {700, 900}}, causal());
  add(table, "tiles/bf16-tall-ragged", with_heads(with_dims(tall, 128, 128), 4, 2));
  for (const auto& [name, anchor] : {std::pair{"top", Anchor::top_left}, {"bottom", Anchor::bottom_right}}) {
    const Case causal_rows = attention(DType::bf16, {{6200, 300}, {6200, 300}}, causal(anchor));
    add(table, fmt::format("tiles/bf16-tall-causal-{}", name), with_heads(with_dims(causal_rows, 128, 128), 4, 2));
  }
  const Case heads = with_heads(with_dims(attention(DType::bf16, {{1, 4100}, {1, 4100}, {1, 4100}}, causal()), 8, 8), 260, 260);
  add(table, "tiles/bf16-sections-of-heads", heads);
  // Some CTAs have more work tiles than slots of staged results: tiles of one key tile, and of two, where hidden values are NaN.
  for (const Sequence lengths : {Sequence{130, 70}, Sequence{160, 150}}) {
    Case ends = with_heads(with_dims(attention(DType::bf16, std::vector<Sequence>(4, lengths), causal()), 128, 128), 64, 64);
    ends.values = Values::nan_tail;
    add(table, fmt::format("tiles/bf16-ends-{}x{}", lengths.q, lengths.kv), ends);
  }
  // Query tiles that see no key follow others, whose results have yet to leave. Such a tile has one key tile all the same; with more than
  // 128 keys, that lies before the keys of its last rows.
  for (const DType dtype : {DType::bf16, DType::e4m3}) {
    const Case spec = attention(dtype, {{500, 250}, {500, 250}, {500, 250}}, causal());
    add(table, fmt::format("tiles/{}-hidden-of-many-tiles", name_of(dtype)), with_heads(with_dims(spec, 16, 16), 64, 64));
  }
}

/// Sequences of many query rows beside others, where two kernels may share a call: only these, only those, none, and none with rows.
inline void paged_mixtures(Table& table) {
  const auto add_mixture = [&](const char* name, std::vector<Sequence> sequences, Tier tier = Tier::quick) {
    Case spec = paged(DType::bf16, DType::bf16, std::move(sequences));
    spec.loose_bounds = true;
    spec.padding_rows = 20;
    add(table, fmt::format("mixture/bf16-{}", name), with_heads(with_dims(spec, 128, 128), 8, 2), tier);
    return table.back();
  };
  add_mixture("decodes", {{1, 300}, {1, 0}, {4, 2100}, {1, 17}});
  add_mixture("prefills", {{200, 200}, {5, 700}, {130, 500}});
  add_mixture("one-prefill", {{300, 400}});
  add_mixture("one-decode", {{1, 3000}});
  add_mixture("no-rows", {{0, 40}, {0, 0}, {0, 1}});
  add_mixture("around-the-limit", {{3, 90}, {4, 90}, {5, 90}, {6, 90}, {0, 90}, {4, 3}, {5, 0}});
  add_mixture("long-decode", {{150, 150}, {1, 9000}, {70, 900}});
  const Case both = add_mixture("both", {{1, 700}, {65, 65}, {1, 0}, {0, 33}, {257, 300}, {3, 129}, {1, 1500}, {9, 8}});
  std::vector<Sequence> many;
  for (std::int64_t i = 0; i < 75; ++i) many.push_back({i % 7 == 3 ? 5 + i : i % 3, 11 * i});
  add_mixture("many", std::move(many), Tier::full);
  const Case one = paged(DType::bf16, DType::bf16, {{1, 40}, {60, 60}, {2, 3000}, {1, 700}});
  add(table, "mixture/bf16-one-prefill-as-bounded", with_heads(with_dims(one, 128, 128), 8, 2), Tier::quick);
  const auto add_both = [&](const char* name, Case spec) { add(table, fmt::format("mixture/{}-{}", name_of(spec.dtype), name), spec); };
  add_both("window", with_mask(both, sliding_window(100)));
  add_both("both-sides", with_mask(both, {.left = 20, .right = 11}));
  for (const auto& [name, values] : {std::pair{"nan-value", Values::nan_value}, {"descending", Values::descending}}) {
    Case spec = both;
    spec.values = values;
    add_both(name, spec);
  }
  Case spec = both;
  spec.softcap = 30;
  spec.sink = Sink::mixed;
  add_both("softcap-sink", spec);
  spec.lse = false;
  spec.scale = -0.1f;
  add_both("negative-scale-no-lse", spec);
  add_both("one-head", with_heads(both, 3, 3));
  add_both("many-heads", with_heads(both, 22, 1));
  spec = paged(DType::f16, DType::f16, both.sequences);
  spec.loose_bounds = true;
  add_both("both", with_heads(with_dims(spec, 64, 64), 6, 2));
}

}  // namespace fovea::check
