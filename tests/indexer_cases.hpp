// SPDX-License-Identifier: Apache-2.0
/// The case table of index_logits and topk_rows.
#pragma once

#include <fmt/format.h>

#include <limits>
#include <utility>
#include <vector>

#include "support/indexer_case.hpp"

namespace fovea::check {

/// Empty, of one column, reversed, over both ends, and whole.
inline std::vector<Columns> odd_ranges(std::int32_t columns) {
  constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min(), kMost = std::numeric_limits<std::int32_t>::max();
  return {{0, columns},           {7, 7},          {3, 4},     {columns - 1, columns}, {9, 2}, {kLeast, kMost}, {1, columns / 2},
          {columns / 2, columns}, {kMost, kLeast}, {5, 5 + 64}};
}

inline std::vector<TopkCase> topk_cases() {
  std::vector<TopkCase> table;
  const auto add = [&](std::string_view group, std::string_view name, TopkCase spec, Tier tier = Tier::quick) {
    spec.name = fmt::format("topk_rows/{}/{}", group, name);
    spec.tier = tier;
    table.push_back(std::move(spec));
  };
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const std::string_view name = name_of(dtype);
    for (const bool sorted : {false, true}) {
      const auto named = [&](std::string_view what) { return fmt::format("{}-{}{}", name, what, sorted ? "-sorted" : ""); };
      add("values", named("normal"), {.dtype = dtype, .sorted = sorted});
      add("values", named("ties"), {.dtype = dtype, .logits = Logits::ties, .sorted = sorted});
      add("values", named("specials"), {.dtype = dtype, .k = 290, .logits = Logits::specials, .sorted = sorted});
      add("values", named("nan"), {.dtype = dtype, .logits = Logits::nan, .sorted = sorted});
      add("ranges", named("odd"), {.dtype = dtype, .rows = 21, .ranges = odd_ranges(300), .sorted = sorted});
    }
    add("gaps", fmt::format("{}-unaligned", name), {.dtype = dtype, .columns = 301, .gap = 3, .ranges = odd_ranges(301)});
    add("values", fmt::format("{}-ascending-long", name),
        {.dtype = dtype, .rows = 2, .columns = 20011, .k = 700, .logits = Logits::ascending}, Tier::full);
  }
  for (const std::int64_t k : {1, 2, 31, 300, 301, 512}) add("k", fmt::format("{}", k), {.k = k});
  for (const std::int64_t columns : {0, 1, 3, 4, 63, 64, 65}) add("columns", fmt::format("{}", columns), {.columns = columns, .k = 7});
  add("ranges", "last-alone", {.rows = 11, .ranges = odd_ranges(300), .only_last = true});
  add("places", "offset", {.rows = 11, .ranges = odd_ranges(300), .offset = true});
  add("places", "page1", {.rows = 12, .k = 40, .page = 1});
  add("places", "page64", {.rows = 12, .columns = 1000, .k = 400, .ranges = odd_ranges(1000), .page = 64});
  add("places", "page64-offset-sorted", {.rows = 12, .columns = 1000, .k = 400, .offset = true, .sorted = true, .page = 64});
  for (const Logits logits : {Logits::normal, Logits::ties, Logits::specials, Logits::ascending, Logits::descending}) {
    const auto name = [&](std::string_view shape) { return fmt::format("{}-{}", shape, static_cast<int>(logits)); };
    add("long", name("40000of2048"), {.rows = 3, .columns = 40000, .k = 2048, .logits = logits}, Tier::full);
    add("long", name("40000of2048-sorted"), {.rows = 2, .columns = 40000, .k = 2048, .logits = logits, .sorted = true}, Tier::full);
    add("long", name("140000of100"), {.rows = 2, .columns = 140000, .k = 100, .logits = logits, .ranges = {{13, 139990}}}, Tier::full);
  }
  add("long", "bf16-65537of2048", {.dtype = DType::bf16, .rows = 2, .columns = 65537, .k = 2048, .ranges = {{3, 65530}, {40000, 70000}}},
      Tier::full);
  add("long", "40000of2048-nan", {.rows = 2, .columns = 40000, .k = 2048, .logits = Logits::nan}, Tier::full);
  add("long", "32768of2048-comb", {.rows = 2, .columns = 32768, .k = 2048, .logits = Logits::comb}, Tier::full);
  // Rows that are split.
  add("long", "300000of2048", {.rows = 1, .columns = 300000, .k = 2048, .ranges = {{7, 299999}}}, Tier::full);
  add("long", "bf16-530001of300-ties", {.dtype = DType::bf16, .rows = 2, .columns = 530001, .k = 300, .logits = Logits::ties}, Tier::full);
  add("long", "300000of2048-short", {.rows = 2, .columns = 300000, .k = 2048, .ranges = {{250000, 251000}, {0, 262145}}}, Tier::full);
  add("long", "4097of2047", {.rows = 2, .columns = 4097, .k = 2047, .logits = Logits::ties}, Tier::full);
  add("bench", "f32-131072of2048", {.rows = 8, .columns = 131072, .k = 2048, .gap = 0}, Tier::bench);
  return table;
}

/// Groups of queries and stages of keys, as the kernels of Hopper deal them.
template <class Add>
void add_shares(Add&& add) {
  // More groups of queries than a block has threads.
  add("long", "rows5200-140", {.rows = 5200, .heads = 1, .tokens = 140, .ranges = {{0, 9}, {80, 140}, {30, 20}, {1, 129}, {128, 140}}},
      Tier::full);
  add("long", "rows2601-131", {.rows = 2601, .heads = 33, .tokens = 131, .ranges = {{60, 131}, {120, 131}, {0, 5}, {7, 7}}}, Tier::full);
  std::vector<std::int32_t> lengths(601);
  for (std::size_t i = 0; i < lengths.size(); ++i) lengths[i] = static_cast<std::int32_t>(i * 37 % 70);
  add("long", "paged-601-sequences", {.rows = 601, .heads = 3, .kv_len = lengths, .page = 8}, Tier::full);
  add("long", "paged-601-two-each", {.rows = 1202, .heads = 3, .kv_len = lengths, .page = 8}, Tier::full);
  // More sequences than a warp sums costs of.
  lengths.resize(4200);
  for (std::size_t i = 0; i < lengths.size(); ++i) lengths[i] = static_cast<std::int32_t>(i * 37 % 70);
  add("long", "paged-4200-sequences", {.rows = 4200, .heads = 1, .kv_len = lengths, .page = 8}, Tier::full);
  // Ranges of a group that differ by a few columns: stages that all of its queries see, and those beside them.
  const std::vector<Columns> near{{0, 300}, {5, 301}, {128, 520}, {0, 257}, {100, 256}, {3, 640}, {0, 384}, {127, 290}, {64, 700}};
  const std::vector<Columns> none_first{{5, 5}, {9, 2}, {7, 7}, {3, 3}, {0, 0}, {8, 8}, {1, 1}, {6, 5}, {0, 200}, {90, 130}, {0, 140}};
  for (const bool keep : {false, true}) {
    const char* suffix = keep ? "-kept" : "";
    for (const std::int64_t heads : {32, 64}) {
      for (const DType out : {DType::f32, DType::bf16}) {
        add("near", fmt::format("{}-{}{}", heads, name_of(out), suffix),
            {.out = out, .rows = 21, .heads = heads, .tokens = 700, .ranges = near, .keep_outside = keep});
      }
    }
    // Nothing to multiply, for some groups or for all.
    add("nothing", fmt::format("ranges{}", suffix), {.rows = 21, .heads = 32, .ranges = {{5, 5}}, .keep_outside = keep});
    add("nothing", fmt::format("lengths{}", suffix), {.rows = 4, .heads = 8, .kv_len = {0, 0}, .columns = 500, .keep_outside = keep});
    add("nothing", fmt::format("groups{}", suffix), {.rows = 33, .heads = 32, .ranges = none_first, .keep_outside = keep});
    // Columns far from those that are seen.
    add("long", fmt::format("rows3-9000{}", suffix),
        {.rows = 3, .heads = 8, .tokens = 9000, .ranges = {{0, 10}, {8990, 9000}, {4000, 4500}}, .keep_outside = keep}, Tier::full);
    for (const DType out : {DType::f32, DType::bf16}) {
      const auto named = [&](std::string_view shape) { return fmt::format("{}-{}{}", shape, name_of(out), suffix); };
      add("long", named("rows20-9000"),
          {.out = out, .rows = 20, .heads = 16, .tokens = 9000, .ranges = {{8000, 8100}, {8010, 8090}, {100, 200}}, .keep_outside = keep},
          Tier::full);
      add("long", named("paged-9000"), {.out = out, .rows = 6, .heads = 33, .kv_len = {70, 2000, 0}, .columns = 9000, .keep_outside = keep},
          Tier::full);
    }
    // Groups of as many queries as a warp has lanes, and some that see nothing.
    add("long", fmt::format("paged-1000-each{}", suffix),
        {.rows = 2000, .heads = 1, .kv_len = {1100, 40}, .columns = 6600, .keep_outside = keep}, Tier::full);
  }
  constexpr std::int32_t kLeastLength = std::numeric_limits<std::int32_t>::min();
  add("paged", "least-lengths", {.rows = 4, .heads = 8, .kv_len = {kLeastLength, 90}, .columns = 100});
}

inline std::vector<IndexCase> index_cases() {
  std::vector<IndexCase> table;
  const auto add = [&](std::string_view group, std::string_view name, IndexCase spec, Tier tier = Tier::quick) {
    spec.name = fmt::format("index_logits/{}/{}", group, name);
    spec.tier = tier;
    table.push_back(std::move(spec));
  };
  for (const std::int64_t heads : {1, 2, 3, 16, 32, 33, 64, 65, 128}) add("heads", fmt::format("{}", heads), {.heads = heads});
  for (const std::int64_t tokens : {0, 1, 2, 63, 64, 65, 127, 128, 129, 257})
    add("tokens", fmt::format("{}", tokens), {.rows = 3, .heads = 8, .tokens = tokens});
  for (const std::int64_t rows : {0, 1, 2, 3, 4, 9, 65}) add("rows", fmt::format("{}", rows), {.rows = rows, .heads = 8, .tokens = 70});
  for (const bool keep : {false, true}) {
    const char* suffix = keep ? "-kept" : "";
    add("ranges", fmt::format("odd{}", suffix), {.rows = 21, .heads = 32, .ranges = odd_ranges(300), .keep_outside = keep});
    add("ranges", fmt::format("bf16{}", suffix),
        {.out = DType::bf16, .rows = 21, .heads = 16, .ranges = odd_ranges(300), .keep_outside = keep});
    add("paged", fmt::format("lengths{}", suffix), {.rows = 6, .kv_len = {0, 1, 130, 64, 65, 200}, .keep_outside = keep});
    add("paged", fmt::format("two-each{}", suffix), {.rows = 8, .heads = 32, .kv_len = {0, 1, 130, 64}, .keep_outside = keep});
  }
  add("head_dim", "64", {.heads = 32, .head_dim = 64, .ranges = odd_ranges(300)});
  add("head_dim", "64-paged", {.rows = 4, .heads = 32, .head_dim = 64, .kv_len = {70, 3}});
  add("gaps", "scales", {.heads = 32, .tokens = 700, .scale_misalignment = 4});
  add("gaps", "scales-paged", {.rows = 3, .heads = 64, .kv_len = {0, 130, 900}, .scale_misalignment = 4});
  add("gaps", "scales-two-each", {.rows = 6, .heads = 32, .kv_len = {65, 1, 600}, .scale_misalignment = 8});
  add("gaps", "unaligned", {.heads = 8, .gap = 3, .ranges = odd_ranges(300)});
  add("values", "nan", {.heads = 8, .nan = true});
  add("values", "nan-ranges", {.rows = 21, .heads = 33, .ranges = odd_ranges(300), .nan = true});
  add("values", "nan-unseen", {.heads = 64, .tokens = 700, .ranges = {{100, 390}, {384, 385}, {200, 200}}});
  add("values", "nan-paged", {.rows = 4, .heads = 64, .kv_len = {70, 130}, .nan = true});
  add("paged", "page16", {.rows = 4, .heads = 64, .kv_len = {70, 300}, .page = 16});
  add("paged", "page24", {.rows = 4, .heads = 33, .kv_len = {70, 421}, .page = 24, .nan = true});
  add("paged", "two-each-page8", {.rows = 6, .heads = 64, .kv_len = {1, 900, 130}, .page = 8});
  add("paged", "two-each-page24", {.rows = 6, .heads = 33, .kv_len = {257, 2, 600}, .page = 24, .nan = true});
  add("paged", "page1", {.rows = 2, .heads = 8, .kv_len = {70, 33}, .page = 1});
  add("paged", "few-columns", {.rows = 2, .heads = 8, .kv_len = {170, 33}, .columns = 100});
  add("paged", "short-table", {.rows = 4, .heads = 8, .kv_len = {200, 1000}, .columns = 400, .blocks = 2});
  add("paged", "garbage-lengths", {.rows = 4, .heads = 8, .kv_len = {-5, 2147480000}, .columns = 100});
  add("long", "rows200-2000", {.rows = 200, .heads = 16, .tokens = 2000, .ranges = {{0, 1500}, {100, 2000}, {900, 900}}}, Tier::full);
  add("long", "rows580-6200",
      {.rows = 580, .heads = 70, .tokens = 6200, .ranges = {{0, 9}, {380, 390}, {3000, 2000}, {6190, 6300}, {2300, 2320}}}, Tier::full);
  add("long", "paged-151-each", {.rows = 604, .heads = 2, .kv_len = {1600, 3, 149, 900}, .page = 24}, Tier::full);
  add("long", "paged-5000", {.rows = 3, .heads = 64, .kv_len = {5000, 17, 2500}}, Tier::full);
  add_shares(add);
  add("bench", "h64-rows16-8192", {.rows = 16, .heads = 64, .tokens = 8192, .gap = 0}, Tier::bench);
  return table;
}

}  // namespace fovea::check
