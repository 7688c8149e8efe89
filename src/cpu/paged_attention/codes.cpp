// SPDX-License-Identifier: Apache-2.0
/// Rows of a cache in a format of codes: found, prefetched, decoded to f32 and multiplied.
#include <algorithm>
#include <array>
#include <utility>

#include "cpu/attention/item.hpp"

namespace fovea::cpu {
namespace {

/// K or V of a call.
struct Side {
  const KvCodes& codes;
  const KvStrides& strides;
  const void *cache, *scales;
};

Side k_side(const Item& item) { return {item.setup.kv_cache->k, item.setup.k, item.call.k, item.call.k_scale_cache}; }
Side v_side(const Item& item) { return {item.setup.kv_cache->v, item.setup.v, item.call.v, item.call.v_scale_cache}; }

void find_rows(const Item& item, const Side& side, detail::KeyRange keys, Row* rows) {
  gather_rows(item, side.strides, side.cache, keys, rows);
  if (side.codes.has_scales) gather_rows(item, side.codes.scales, side.scales, keys, rows + item.extents.row_pointers);
}

/// Decodes rows of one head. Plain rows are widened.
void decode(const Item& item, const Side& side, const Row* rows, int count, int head, float* decoded) {
  const KvCodes& codes = side.codes;
  const auto dim = static_cast<int>(codes.dim);
  const std::int64_t offset = head * side.strides.head;
  if (codes.decode != nullptr) {
    const Row* scales = rows + item.extents.row_pointers;
    codes.decode({rows, scales, offset, head * codes.scales.head, count, codes.f16_scale}, decoded, codes.stride, dim);
    return;
  }
  const auto widen = item.setup.rows->add_scaled[static_cast<std::size_t>(item.setup.kv_cache->rows_dtype)];
  for (int i = 0; i < count; ++i, decoded += codes.stride) {
    std::fill_n(decoded, dim, 0.0f);
    widen(decoded, static_cast<const std::byte*>(rows[i]) + offset, 1.0f, dim);
  }
}

/// Decoded rows of one head.
struct DecodedRows {
  std::array<Row, kDecodedRows> rows{};

  DecodedRows(const float* decoded, std::int64_t stride) {
    for (Row& row : rows) row = std::exchange(decoded, decoded + stride);
  }
};

/// Always inlined, as prefetch_row().
[[gnu::always_inline]] inline void prefetch(const Item& item, const Side& side, const Row* rows, int count, int head) {
  const KvCodes& codes = side.codes;
  for (int i = 0; i < count; ++i) {
    const std::byte* row = static_cast<const std::byte*>(rows[i]) + head * side.strides.head;
    prefetch_row(row, codes.bytes);
    __builtin_prefetch(row + codes.bytes - 1);
    if (codes.has_scales) __builtin_prefetch(static_cast<const std::byte*>(rows[i + item.extents.row_pointers]) + head * codes.scales.head);
  }
}

/// Rows of a tile's K or V.
struct Stream {
  Side side;
  const StreamRows& rows;
};

/// Prefetches what follows the rows at `key`: the next ones, or the first of the other side.
[[gnu::always_inline]] inline void prefetch_next(const Item& item, const Stream& own, const Stream& next, int key, int head) {
  const int after = key + kDecodedRows, left = own.rows.count - after;
  if (left > 0) return prefetch(item, own.side, own.rows.rows + after, std::min(kDecodedRows, left), head);
  prefetch(item, next.side, next.rows.rows, std::min(kDecodedRows, next.rows.count), head);
}

}  // namespace

int gather_codes(const Item& item, detail::KeyRange keys, Row* k, Row* v) {
  const auto count = static_cast<int>(keys.size());
  float* decoded = item.scratch.decoded_kv;
  const auto gather = [&](const Side& side, Row* rows) {
    find_rows(item, side, keys, rows);
    decode(item, side, rows, count, 0, decoded);
    for (int i = 0; i < count; ++i, decoded += side.codes.stride) rows[i] = decoded;
  };
  gather(k_side(item), k);
  gather(v_side(item), v);
  return count;
}

int find_codes(const Item& item, detail::KeyRange keys, Row* k, Row* v) {
  find_rows(item, k_side(item), keys, k);
  find_rows(item, v_side(item), keys, v);
  return static_cast<int>(keys.size());
}

void score_codes(const Item& item, const StreamScores& tile) {
  const Stream own{k_side(item), tile.keys}, next{v_side(item), tile.next};
  const DecodedRows decoded(item.scratch.decoded_kv, own.side.codes.stride);
  StreamScores some = tile;
  some.heads = 1;
  some.next.count = 0;
  for (int key = 0; key < tile.keys.count; key += kDecodedRows) {
    some.keys = {decoded.rows.data(), 0, std::min(kDecodedRows, tile.keys.count - key)};
    for (int head = 0; head < tile.heads; ++head) {
      prefetch_next(item, own, next, key, head);
      decode(item, own.side, tile.keys.rows + key, some.keys.count, head, item.scratch.decoded_kv);
      const std::int64_t first = static_cast<std::int64_t>(head) * tile.rows;
      some.q = static_cast<const std::byte*>(tile.q) + first * tile.q_stride * item.setup.attention->qk_bytes();
      some.scores = tile.scores + first * tile.score_stride + key;
      item.setup.attention->stream_scores[static_cast<std::size_t>(DType::f32)](some);
    }
  }
}

void weigh_codes(const Item& item, const StreamValues& tile) {
  const Stream own{v_side(item), tile.values}, next{k_side(item), tile.next};
  const DecodedRows decoded(item.scratch.decoded_kv, own.side.codes.stride);
  StreamValues some = tile;
  some.heads = 1;
  some.next.count = 0;
  for (int key = 0; key < tile.values.count || key == 0; key += kDecodedRows) {  // once even without keys, to rescale
    some.values = {decoded.rows.data(), 0, std::min(kDecodedRows, tile.values.count - key)};
    for (int head = 0; head < tile.heads; ++head) {
      prefetch_next(item, own, next, key, head);
      decode(item, own.side, tile.values.rows + key, some.values.count, head, item.scratch.decoded_kv);
      const std::int64_t first = static_cast<std::int64_t>(head) * tile.head_rows;
      some.p = tile.p + first * tile.p_stride + key;
      some.acc = tile.acc + first * tile.acc_stride;
      some.rescale = key == 0 && tile.rescale != nullptr ? tile.rescale + first : nullptr;
      item.setup.rows->stream_values[static_cast<std::size_t>(DType::f32)](some);
    }
  }
}

}  // namespace fovea::cpu
