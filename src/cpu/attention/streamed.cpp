// SPDX-License-Identifier: Apache-2.0
/// Few query rows: K and V are read where they lie, while the next rows are on their way from memory.
#include "cpu/attention/item.hpp"

namespace fovea::cpu {
namespace {

/// Rows of one tile, keys counted from `begin`.
struct StreamTile {
  std::int64_t begin = 0;
  int count = 0;
  Row *k = nullptr, *v = nullptr;
};

StreamTile gather_tile(const Item& item, std::int64_t tile, int buffer) {
  const std::int64_t size = item.setup.tuning.stream_tile;
  const std::int64_t begin = std::max(item.entry.key_begin, tile * size), end = std::min(item.entry.key_end, (tile + 1) * size);
  StreamTile rows{begin, 0, item.scratch.k_rows[buffer], item.scratch.v_rows[buffer]};
  rows.count = gather_keys(item, {begin, end}, buffer, rows.k, rows.v);
  for (int i = rows.count; i % 4 != 0; ++i) rows.k[i] = zero_row();
  return rows;
}

/// Rows of one query see the same keys, so they take exactly those: nothing invisible is multiplied.
void weigh(const Item& item, const StreamTile& tile, const StreamTile& next, bool masked) {
  const std::int64_t group = item.setup.core.group();
  const std::int64_t element = static_cast<std::int64_t>(size_of(item.setup.core.kv_dtype));
  const auto stream_values = item.setup.rows->stream_values[static_cast<std::size_t>(item.setup.core.kv_dtype)];
  StreamValues step{.next = next.count > 0 ? next.k : nullptr,
                    .p_stride = item.extents.score_stride,
                    .acc_stride = item.extents.acc_stride,
                    .head_dim = static_cast<int>(item.setup.core.head_dim_v),
                    .next_count = next.count,
                    .next_bytes = static_cast<int>(item.setup.core.head_dim_qk * element)};
  for (int row = 0; row < item.rows; row += step.rows) {
    const auto same_query = static_cast<int>(group - (item.entry.row_begin + row) % group);
    step.rows = masked ? std::min(item.rows - row, same_query) : item.rows;
    const KeySpan seen = masked ? item.scratch.visible[row] : KeySpan{0, tile.count};
    step.count = std::max(seen.end - seen.begin, 0);
    step.p = item.scratch.scores + row * step.p_stride + seen.begin;
    step.values = tile.v + seen.begin;
    step.acc = item.scratch.acc + row * step.acc_stride;
    step.rescale = item.scratch.rescale + row;
    stream_values(step);
    step.next = nullptr;
  }
}

}  // namespace

void attend_streamed(const Item& item) {
  const Setup& setup = item.setup;
  const Scratch& s = item.scratch;
  const std::int64_t size = setup.tuning.stream_tile;
  if (item.entry.key_begin >= item.entry.key_end) return;
  const detail::KvTiles tiles =
      detail::kv_tiles(item.sequence.band, item.query_of(0), item.query_of(item.rows - 1) + 1, item.sequence.seq_k, size);
  const std::int64_t first = item.entry.key_begin / size, last = tiles_of(item.entry.key_end, size);
  const auto element = static_cast<std::int64_t>(size_of(setup.core.kv_dtype));

  StreamTile next = gather_tile(item, first, 0);
  for (std::int64_t at = first; at < last; ++at) {
    const StreamTile tile = next;
    next = at + 1 < last ? gather_tile(item, at + 1, static_cast<int>(at + 1 - first) % 2) : StreamTile{};
    const bool masked = at < tiles.full_first || at >= tiles.full_last || tile.count < size;
    if (masked) find_visible(item, tile.begin, {0, tile.count});

    setup.attention->stream_scores[static_cast<std::size_t>(setup.core.kv_dtype)](
        {.q = s.q,
         .keys = tile.k,
         .next = setup.latent ? nullptr : tile.v,
         .scores = s.scores,
         .q_stride = item.extents.q_stride,
         .score_stride = item.extents.score_stride,
         .rows = item.rows,
         .count = tile.count,
         .head_dim = static_cast<int>(setup.core.head_dim_qk),
         .next_bytes = static_cast<int>(setup.core.head_dim_v * element)});
    setup.rows->softmax({.scores = s.scores,
                         .p = s.scores,
                         .score_stride = item.extents.score_stride,
                         .p_stride = item.extents.score_stride,
                         .rows = item.rows,
                         .begin = 0,
                         .end = static_cast<int>(round_up(tile.count, 16)),
                         .visible = masked ? s.visible : nullptr,
                         .factor = item.factor,
                         .into_cap = item.into_cap,
                         .maximum = s.maximum,
                         .sum = s.sum,
                         .rescale = s.rescale});
    weigh(item, tile, next, masked);
  }
}

}  // namespace fovea::cpu
