// SPDX-License-Identifier: Apache-2.0
/// Many query rows: K and V of a tile are packed once, and every row of the item multiplies them.
#include <array>
#include <span>

#include "cpu/attention/item.hpp"
#include "cpu/attention/score_bias.hpp"

namespace fovea::cpu {
namespace {

/// One key tile. Keys count from `origin`, a multiple of the tile.
struct PackedTile {
  std::int64_t origin = 0;
  KeySpan keys{};       // keys that some row of the item sees
  bool masked = false;  // set if some row does not see all of them
  bool finite = true;   // set if every packed value is finite
  int next = 0;         // rows of the next tile in k_rows[1], to prefetch
};

/// Rows of K and V of a tile's panels, [first, last).
struct PanelRows {
  int first = 0, last = 0;
  const Row *k = nullptr, *v = nullptr;
};

/// Panels of V, and of K if the arithmetic packs both at once. Returns whether V is finite.
bool pack_values(const Item& item, const PanelRows& rows) {
  const AttentionKernels& kernels = *item.setup.attention;
  const Scratch& s = item.scratch;
  const std::int64_t first = rows.first;
  const int qk = static_cast<int>(item.setup.core.head_dim_qk), dv = static_cast<int>(item.setup.core.head_dim_v);
  std::byte* keys = static_cast<std::byte*>(s.keys) + first * item.extents.qk_padded * kernels.qk_bytes();
  std::byte* values = kernels.shared_tile ? keys : static_cast<std::byte*>(s.values) + first * kernels.panel * kernels.operand_bytes;
  if (const auto pack = kernels.pack_latent[static_cast<std::size_t>(item.setup.core.kv_dtype)]; pack != nullptr) {
    return pack({.rows = rows.v + first,
                 .count = rows.last - rows.first,
                 .head_dim_qk = qk,
                 .head_dim_v = dv,
                 .row_stride = item.extents.qk_padded,
                 .kv_tile = item.setup.tuning.kv_tile,
                 .keys = keys,
                 .values = values});
  }
  const auto v_dtype = static_cast<std::size_t>(item.setup.v_dtype());
  return kernels.pack_values[v_dtype](rows.v + first, rows.last - rows.first, dv, item.setup.tuning.kv_tile, values);
}

PackedTile pack_tile(const Item& item, std::int64_t origin, bool masked) {
  const AttentionKernels& kernels = *item.setup.attention;
  const Scratch& s = item.scratch;
  const std::int64_t begin = std::max(item.entry.key_begin, origin);
  const std::int64_t end = std::min<std::int64_t>(item.entry.key_end, origin + item.setup.tuning.kv_tile);
  PackedTile tile{.origin = origin, .keys = {static_cast<int>(begin - origin), static_cast<int>(end - origin)}, .masked = masked};

  Row *k = s.k_rows[0], *v = s.v_rows[0];
  tile.keys.end = tile.keys.begin + gather_keys(item, {begin, end}, 0, k + tile.keys.begin, v + tile.keys.begin);
  tile.masked = tile.masked || tile.keys.end < end - origin;
  const int first = tile.keys.begin / kernels.panel * kernels.panel;
  const int last = static_cast<int>(round_up(tile.keys.end, kernels.panel));
  for (int key = first; key < last; ++key) {
    if (key == tile.keys.begin) key = tile.keys.end;
    if (key < last) k[key] = v[key] = zero_row();
  }

  if (item.setup.int8) {
    load_k_scales(item, {origin + first, end}, s.k_scales + first);
    std::fill_n(s.k_scales + tile.keys.end, last - tile.keys.end, 0.0f);
  }

  const auto kv = static_cast<std::size_t>(item.setup.core.kv_dtype);
  if (kernels.pack_latent[kv] == nullptr) {
    std::byte* keys = static_cast<std::byte*>(s.keys) + first * item.extents.qk_padded * kernels.qk_bytes();
    kernels.pack_keys[kv](k + first, last - first, static_cast<int>(item.setup.core.head_dim_qk), static_cast<int>(item.extents.qk_padded),
                          keys);
  }
  tile.finite = pack_values(item, {first, last, k, v});
  return tile;
}

/// Finds the blocks of rows [begin, end) that see any key of the tile, and for each the range of keys that its rows see. Rows count from
/// `begin`.
int find_blocks(const Item& item, const PackedTile& tile, int begin, int end) {
  const int depth = item.setup.attention->depth, block_rows = item.setup.attention->block_rows;
  int count = 0;
  for (int row = begin; row < end; row += block_rows) {
    const int last = std::min(row + block_rows, end);
    KeySpan keys = tile.keys;
    if (tile.masked) {
      keys = {tile.keys.end, tile.keys.begin};
      for (int r = row; r < last; ++r) {
        const KeySpan seen = item.scratch.visible[r];
        if (seen.begin < seen.end) keys = {std::min(keys.begin, seen.begin), std::max(keys.end, seen.end)};
      }
    }
    if (keys.begin >= keys.end) continue;
    item.scratch.blocks[count++] = {row - begin, last - row, keys.begin / depth * depth, static_cast<int>(round_up(keys.end, depth))};
  }
  return count;
}

SoftmaxTile softmax_tile(const Item& item, const PackedTile& tile, int begin, const RowBlock& block) {
  const int panel = item.setup.attention->panel;
  const Scratch& s = item.scratch;
  const std::int64_t stride = item.extents.score_stride, row = begin + block.row;
  return {.scores = s.scores + block.row * stride,
          .p = static_cast<std::byte*>(s.weights) + block.row * stride * item.setup.attention->operand_bytes,
          .score_stride = stride,
          .p_stride = stride,
          .rows = block.rows,
          .begin = block.key_begin / panel * panel,
          .end = static_cast<int>(round_up(block.key_end, panel)),
          .visible = tile.masked ? s.visible + row : nullptr,
          .shown = tile.masked && s.shown != nullptr ? s.shown + row : nullptr,
          .bias = s.bias == nullptr ? nullptr : s.bias + block.row * stride,
          .factor = item.factors->factor,
          .soft_cap = item.factors->soft_cap,
          .coarse = item.call.lse == nullptr,
          .maximum = s.maximum + row,
          .sum = s.sum + row,
          .rescale = s.rescale + block.row};
}

/// f(bias, query, row) for each row of a block. Rows count from `begin` as the block's do.
template <class F>
void for_rows(const Item& item, int begin, const RowBlock& block, F&& f) {
  const std::int64_t group = item.setup.core.group();
  for (int row = block.row; row < block.row + block.rows; ++row) {
    const std::int64_t flat = item.entry.row_begin + begin + row;
    f(ScoreBias(item.setup, item.call, item.sequence, item.kv_head * group + flat % group), flat / group, row);
  }
}

/// Every column that the softmax touches has a number.
void load_bias(const Item& item, const PackedTile& tile, int begin, const RowBlock& block) {
  const SoftmaxTile columns = softmax_tile(item, tile, begin, block);
  const int first = std::max(columns.begin, tile.keys.begin), last = std::min(columns.end, tile.keys.end);
  const auto factor = static_cast<float>(1 / item.factors->unit);
  for_rows(item, begin, block, [&](const ScoreBias& bias, std::int64_t query, int row) {
    float* to = item.scratch.bias + row * item.extents.score_stride;
    std::fill(to + columns.begin, to + first, 0.0f);
    std::fill(to + last, to + columns.end, 0.0f);
    bias.load(query, tile.origin + first, last - first, factor, to + first);
  });
}

/// Weights that dropout takes away, once they are in the sums.
void drop(const Item& item, const PackedTile& tile, int begin, const RowBlock& block) {
  const std::int64_t operand = item.setup.attention->operand_bytes;
  const int first = std::max(block.key_begin, tile.keys.begin), last = std::min(block.key_end, tile.keys.end);
  for_rows(item, begin, block, [&](const ScoreBias& bias, std::int64_t query, int row) {
    std::byte* p = static_cast<std::byte*>(item.scratch.weights) + (row * item.extents.score_stride + first) * operand;
    bias.for_dropped(query, tile.origin + first, last - first, [&](int key) { std::fill_n(p + key * operand, operand, std::byte{}); });
  });
}

/// Multiplies values that are not all finite. A weight of zero does not silence such a value, so each row multiplies exactly the keys that
/// it sees.
void weigh_exactly(const Item& item, int begin, const RowBlock& block) {
  const Scratch& s = item.scratch;
  const RowKernels& rows = *item.setup.rows;
  const std::int64_t stride = item.extents.score_stride;
  for (int r = block.row; r < block.row + block.rows; ++r) {
    const KeySpan seen = s.visible[begin + r];
    const int count = std::max(seen.end - seen.begin, 0);
    float* p = s.scores + r * stride + seen.begin;
    if (s.weights != s.scores) {
      const auto* operands = static_cast<const std::uint16_t*>(s.weights) + r * stride + seen.begin;
      std::fill_n(p, count, 0.0f);
      rows.add_scaled[static_cast<std::size_t>(DType::bf16)](p, operands, 1.0f, count);
    }
    StreamValues values{.acc = s.acc + (begin + r) * item.extents.acc_stride,
                        .rescale = s.rescale + r,
                        .p_stride = stride,
                        .acc_stride = item.extents.acc_stride,
                        .rows = 1,
                        .head_dim = static_cast<int>(item.setup.core.head_dim_v)};
    for (KeySpan rest{seen.begin, seen.begin + count}; values.rescale != nullptr || rest.begin < rest.end; values.rescale = nullptr) {
      const KeySpan run = first_run(rest, s.shown == nullptr ? nullptr : s.shown + begin + r);
      values.p = p + (run.begin - seen.begin);
      values.values = {.rows = s.v_rows[0] + run.begin, .count = run.end - run.begin};
      rows.stream_values[static_cast<std::size_t>(item.setup.v_dtype())](values);
      rest.begin = run.end;
    }
  }
}

/// Multiplies values that are not all finite in the order of sums of finite ones: hidden values become zeros. Each row of a block has other
/// ones, so the product of the whole block is made for each row, which alone is kept.
void weigh_seen(const Item& item, const PackedTile& tile, int begin, ValueTile values) {
  constexpr int kMostBlockRows = 32;
  alignas(64) std::array<float, kMostBlockRows * kLongestRow> kept;
  const Scratch& s = item.scratch;
  const int panel = item.setup.attention->panel;
  PanelRows rows{tile.keys.begin / panel * panel, static_cast<int>(round_up(tile.keys.end, panel)), s.k_rows[0], s.v_rows[1]};
  for (const RowBlock& block : std::span(values.blocks, static_cast<std::size_t>(values.block_count))) {
    float* acc = values.acc + block.row * values.acc_stride;
    std::copy_n(acc, block.rows * values.acc_stride, kept.data());
    values.blocks = &block;
    values.block_count = 1;
    for (int r = block.row; r < block.row + block.rows; ++r) {
      const KeySpan seen = s.visible[begin + r];
      const KeyBits* bits = s.shown == nullptr ? nullptr : s.shown + begin + r;
      for (int key = rows.first; key < rows.last; ++key) {
        const bool shown = key >= seen.begin && key < seen.end && (bits == nullptr || bits->shows(key));
        s.v_rows[1][key] = shown ? s.v_rows[0][key] : zero_row();
      }
      pack_values(item, rows);
      item.setup.attention->values(values);
      const std::int64_t at = (r - block.row) * values.acc_stride;
      std::copy_n(acc + at, values.acc_stride, kept.data() + at);
      std::copy_n(kept.data(), block.rows * values.acc_stride, acc);
    }
  }
  rows.v = s.v_rows[0];
  pack_values(item, rows);
}

/// Scores, weights and weighted values of the rows [begin, end).
void step(const Item& item, const PackedTile& tile, int begin, int end) {
  const AttentionKernels& kernels = *item.setup.attention;
  const Scratch& s = item.scratch;
  const int blocks = find_blocks(item, tile, begin, end);
  if (blocks == 0) return;
  const ScoreTile scores{.q = static_cast<const std::byte*>(s.q) + begin * item.extents.q_stride * kernels.qk_bytes(),
                         .keys = s.keys,
                         .scores = s.scores,
                         .q_stride = item.extents.q_stride,
                         .score_stride = item.extents.score_stride,
                         .row_stride = item.extents.qk_padded,
                         .head_dim = static_cast<int>(kernels.shared_tile ? item.setup.core.head_dim_qk : item.extents.qk_padded),
                         .q_scales = s.q_scales + begin,
                         .k_scales = s.k_scales,
                         .next = s.k_rows[1],
                         .next_count = begin == 0 ? tile.next : 0,
                         .next_bytes = item.setup.latent ? item.setup.latent->token_bytes : 0,
                         .blocks = s.blocks,
                         .block_count = blocks};
  const ValueTile values{.p = s.weights,
                         .values = s.values,
                         .acc = s.acc + begin * item.extents.acc_stride,
                         .rescale = s.rescale,
                         .p_stride = item.extents.score_stride,
                         .acc_stride = item.extents.acc_stride,
                         .row_stride = item.extents.qk_padded,
                         .kv_tile = item.setup.tuning.kv_tile,
                         .head_dim = static_cast<int>(item.setup.core.head_dim_v),
                         .blocks = s.blocks,
                         .block_count = blocks};
  const bool exact = tile.masked && !tile.finite;
  if (kernels.attend != nullptr && !exact) return kernels.attend({scores, softmax_tile(item, tile, begin, {}), values});
  kernels.scores(scores);
  for (int i = 0; i < blocks; ++i) {
    if (s.bias != nullptr) load_bias(item, tile, begin, s.blocks[i]);
    kernels.softmax(softmax_tile(item, tile, begin, s.blocks[i]));
    if (item.setup.core.dropout_p > 0) drop(item, tile, begin, s.blocks[i]);
  }
  if (!exact) return kernels.values(values);
  if (item.setup.core.exact_rows) return weigh_seen(item, tile, begin, values);
  for (int i = 0; i < blocks; ++i) weigh_exactly(item, begin, s.blocks[i]);
}

/// A head of an item. The heads of a tile follow each other, so they share scores and weights.
Item packed_head(const Item& item, int head) {
  if (item.heads == 1) return item;
  Item one = item_of_head(item, head);
  one.scratch.scores = item.scratch.scores;
  one.scratch.rescale = item.scratch.rescale;
  return one;
}

/// The key tile `at`, for one head. `last`: the end of the item's tiles.
void attend_tile(const Item& item, std::int64_t at, std::int64_t last, bool masked) {
  const Tuning& tuning = item.setup.tuning;
  if (item.setup.blocks && !find_listed(item, at * tuning.kv_tile)) return;
  PackedTile tile = pack_tile(item, at * tuning.kv_tile, masked || item.setup.blocks);
  if (item.setup.attention->pack_latent[static_cast<std::size_t>(item.setup.core.kv_dtype)] != nullptr && at + 1 < last) {
    tile.next = locate_latent(item, {(at + 1) * tuning.kv_tile, std::min<std::int64_t>(item.entry.key_end, (at + 2) * tuning.kv_tile)},
                              item.scratch.k_rows[1]);
  }
  if (tile.masked) find_visible(item, tile.origin, tile.keys);
  for (int begin = 0; begin < item.rows; begin += tuning.chunk_rows)
    step(item, tile, begin, std::min(begin + tuning.chunk_rows, item.rows));
}

}  // namespace

void attend_packed(const Item& item) {
  const Tuning& tuning = item.setup.tuning;
  if (item.entry.key_begin >= item.entry.key_end) return;
  const detail::KvTiles tiles =
      detail::kv_tiles(item.sequence.band, item.query_of(0), item.query_of(item.rows - 1) + 1, item.sequence.seq_k, tuning.kv_tile);
  const std::int64_t first = item.entry.key_begin / tuning.kv_tile, last = ceil_div(item.entry.key_end, tuning.kv_tile);
  const std::int64_t masked_from = first_masked_key(item);
  const auto for_heads = [&](const auto& f) {
    for (int head = 0; head < item.heads; ++head) f(packed_head(item, head));
  };
  if (item.setup.attention->enter != nullptr) item.setup.attention->enter();
  bool has_total = false;
  for (std::int64_t at = first; at < last; ++at) {
    if (item.setup.core.exact_rows && at > first && at * tuning.kv_tile % tuning.split_keys == 0) {
      if (!has_total) std::fill_n(item.scratch.total_sum, item.heads * item.head_rows, 0.0f);
      has_total = true;
      for_heads(add_parts);
    }
    const bool in_band = at >= tiles.full_first && at < tiles.full_last && (at + 1) * tuning.kv_tile <= masked_from;
    for_heads([&](const Item& one) { attend_tile(one, at, last, !in_band); });
  }
  if (has_total) for_heads(take_totals);
  if (item.setup.attention->leave != nullptr) item.setup.attention->leave();
}

}  // namespace fovea::cpu
