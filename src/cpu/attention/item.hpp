// SPDX-License-Identifier: Apache-2.0
/// One work entry for one kv head, or for several: a query tile and a range of keys.
#pragma once

#include "cpu/attention/schedule.hpp"

namespace fovea::cpu {

/// Factors that turn the scores of a head into exponents of two.
struct HeadFactors {
  float factor = 0;  // of SoftmaxTile
  SoftCap soft_cap{};
  double unit = 1;        // of its row maximum, in natural units
  bool negate_q = false;  // set where the scale is negative: the largest score then has the largest weight
};

/// The unit of capped scores, in natural ones: the cap, which saves a rounding, unless it is so large or small that quotients lose bits.
double unit_of_capped(double cap);

/// Without a cap where `cap` is 0.
SoftCap soft_cap_of(double scale, double cap);

/// State of the item that a thread works on. The steps are in packed.cpp and streamed.cpp.
struct Item {
  const Setup& setup;
  const Call& call;
  const Extents& extents;
  Scratch scratch;
  const WorkEntry& entry;
  Sequence sequence{};
  std::int64_t kv_head = 0;  // first one
  int heads = 1;
  int rows = 0;                          // of one head
  int head_rows = 0;                     // from one head's rows to those of the next in scratch memory
  const HeadFactors* factors = nullptr;  // [heads]: their scales may differ

  std::int64_t query_of(std::int64_t row) const { return (entry.row_begin + row) / setup.core.group(); }
};

/// The part of an item that belongs to one of its heads.
Item item_of_head(const Item& item, int head);

/// Addresses of the rows of keys [begin, end) of the item's sequence and head.
void gather_rows(const Item& item, const KvStrides& strides, const void* base, detail::KeyRange keys, Row* rows);

/// Finds the rows of K and V of keys [begin, end), at most one tile. `buffer` is the tile's buffer. Returns their number: a list may hold
/// indices that name no token.
int gather_keys(const Item& item, detail::KeyRange keys, int buffer, Row* k, Row* v);

/// The same as gather_keys() for a latent cache (latent_attention/gather.cpp).
int gather_latent(const Item& item, detail::KeyRange keys, int buffer, Row* k, Row* v);

/// The same for a cache in a format of codes (paged_attention/codes.cpp), of one head.
int gather_codes(const Item& item, detail::KeyRange keys, Row* k, Row* v);

/// For streaming such a cache. Finds the rows of codes, and those of scales `row_pointers` behind. The products decode a few rows of a head
/// and multiply them before the next ones.
int find_codes(const Item& item, detail::KeyRange keys, Row* k, Row* v);
void score_codes(const Item& item, const StreamScores& tile);
void weigh_codes(const Item& item, const StreamValues& tile);

/// Finds the first byte of each of those rows, for prefetching.
int locate_latent(const Item& item, detail::KeyRange keys, Row* rows);

/// 8-bit attention (quantized_attention/scales.cpp). Loads the scales of the item's rows, and those of keys [begin, end) into k_scales[0
/// ..]. Restores values from weighted quantised values and the sum of weights. Returns what smoothing of K subtracted from a row's lse.
void load_q_scales(const Item& item);
void load_k_scales(const Item& item, detail::KeyRange keys, float* k_scales);
void restore_values(const Item& item, const float* acc, float total, float* values);
double lse_shift(const Item& item, int row);

/// Prefetches `bytes` bytes from `row` on. GCC removes calls of a function that does nothing but prefetch, so this one is always inlined.
[[gnu::always_inline]] inline void prefetch_row(Row row, std::int64_t bytes) {
  for (std::int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(static_cast<const std::byte*>(row) + at);
}

/// A row of zeros, which stands in for the keys that pad a panel.
Row zero_row();

/// Finds the keys within the tile at `tile_begin` that each row sees, clamped to [keys.begin, keys.end), and its bits of a packed mask.
/// Both count from the tile.
void find_visible(const Item& item, std::int64_t tile_begin, KeySpan keys);

/// The first key that has bits in a packed mask; no key without one.
std::int64_t first_masked_key(const Item& item);

/// The first run of keys within `seen` that the row's bits show, or all of `seen` without bits. Where there is none, an empty run at the
/// end of `seen`.
KeySpan first_run(KeySpan seen, const KeyBits* bits);

/// Empties the sums of the item's rows.
void clear_sums(const Item& item);

/// The sums of weights and of weighted values of one row, relative to its maximum.
struct RowSums {
  float* acc = nullptr;
  float maximum = 0, sum = 0;
};

/// Adds the sums over later keys to a row's total (exact_rows.cpp). Overwrites `part`.
void add_part(const Item& item, RowSums& total, RowSums& part);

/// The same for all rows of an item, from its sums to its totals. The sums then are empty, or the totals.
void add_parts(const Item& item);
void take_totals(const Item& item);

void attend_packed(const Item& item);
void attend_streamed(const Item& item);

}  // namespace fovea::cpu
