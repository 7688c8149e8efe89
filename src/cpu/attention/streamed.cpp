// SPDX-License-Identifier: Apache-2.0
/// Few query rows: K and V are read where they lie, while the next rows are prefetched.
#include "cpu/attention/item.hpp"

namespace fovea::cpu {
namespace {

/// Rows of one tile. Keys count from `begin`.
struct StreamTile {
  std::int64_t begin = 0;
  StreamRows k{}, v{};
};

StreamTile gather_tile(const Item& item, std::int64_t tile, int buffer) {
  const Setup& setup = item.setup;
  const std::int64_t size = setup.tuning.stream_tile;
  const std::int64_t begin = std::max(item.entry.key_begin, tile * size), end = std::min(item.entry.key_end, (tile + 1) * size);
  Row *k = item.scratch.k_rows[buffer], *v = item.scratch.v_rows[buffer];
  const detail::KeyRange keys{begin, end};
  const int count = setup.kv_cache ? find_codes(item, keys, k, v) : gather_keys(item, keys, buffer, k, v);
  return {begin, {k, setup.k.head, count}, {v, setup.v.head, count}};
}

void score(const Item& item, const StreamTile& tile) {
  const StreamScores scores{.q = item.scratch.q,
                            .keys = tile.k,
                            .next = tile.v,
                            .scores = item.scratch.scores,
                            .q_stride = item.extents.q_stride,
                            .score_stride = item.extents.score_stride,
                            .heads = item.heads,
                            .rows = item.rows,
                            .head_dim = static_cast<int>(item.setup.core.head_dim_qk)};
  if (item.setup.kv_cache) return score_codes(item, scores);
  item.setup.attention->stream_scores[static_cast<std::size_t>(item.setup.core.kv_dtype)](scores);
}

void weigh_scores(const Item& item, int count, bool masked) {
  const Scratch& s = item.scratch;
  for (int head = 0, row = 0; head < item.heads; ++head, row += item.rows) {
    float* scores = s.scores + row * item.extents.score_stride;
    item.setup.rows->softmax({.scores = scores,
                              .p = scores,
                              .score_stride = item.extents.score_stride,
                              .p_stride = item.extents.score_stride,
                              .rows = item.rows,
                              .begin = 0,
                              .end = static_cast<int>(round_up(count, 16)),
                              .visible = masked ? s.visible : nullptr,
                              .shown = masked ? s.shown : nullptr,
                              .factor = item.factors[head].factor,
                              .soft_cap = item.factors[head].soft_cap,
                              .maximum = s.maximum + row,
                              .sum = s.sum + row,
                              .rescale = s.rescale + row});
  }
}

/// The rows of one query see the same keys. They multiply exactly these, and nothing invisible.
void weigh_values(const Item& item, const StreamTile& tile, const StreamTile& next, bool masked) {
  const std::int64_t group = item.setup.core.group();
  StreamValues step{.values = tile.v,
                    .next = next.k,
                    .p_stride = item.extents.score_stride,
                    .acc_stride = item.extents.acc_stride,
                    .heads = item.heads,
                    .head_rows = item.rows,
                    .head_dim = static_cast<int>(item.setup.core.head_dim_v)};
  for (int row = 0; row < item.rows; row += step.rows) {
    const auto same_query = static_cast<int>(group - (item.entry.row_begin + row) % group);
    step.rows = masked ? std::min(item.rows - row, same_query) : item.rows;
    const KeySpan seen = masked ? item.scratch.visible[row] : KeySpan{0, tile.v.count};
    const KeyBits* bits = masked && item.scratch.shown != nullptr ? item.scratch.shown + row : nullptr;
    step.acc = item.scratch.acc + row * step.acc_stride;
    step.rescale = item.scratch.rescale + row;
    for (KeySpan rest{seen.begin, std::max(seen.begin, seen.end)}; step.rescale != nullptr || rest.begin < rest.end;) {
      const KeySpan run = first_run(rest, bits);
      step.values.rows = tile.v.rows + run.begin;
      step.values.count = run.end - run.begin;
      step.p = item.scratch.scores + row * step.p_stride + run.begin;
      if (item.setup.kv_cache) {
        weigh_codes(item, step);
      } else {
        item.setup.rows->stream_values[static_cast<std::size_t>(item.setup.core.kv_dtype)](step);
      }
      step.next.count = 0;
      step.rescale = nullptr;
      rest.begin = run.end;
    }
  }
}

}  // namespace

void attend_streamed(const Item& item) {
  const std::int64_t size = item.setup.tuning.stream_tile;
  if (item.entry.key_begin >= item.entry.key_end) return;
  const detail::KvTiles tiles =
      detail::kv_tiles(item.sequence.band, item.query_of(0), item.query_of(item.rows - 1) + 1, item.sequence.seq_k, size);
  const std::int64_t first = item.entry.key_begin / size, last = ceil_div(item.entry.key_end, size);

  const std::int64_t masked_from = first_masked_key(item);
  StreamTile next = gather_tile(item, first, 0);
  for (std::int64_t at = first; at < last; ++at) {
    const StreamTile tile = next;
    next = at + 1 < last ? gather_tile(item, at + 1, static_cast<int>(at + 1 - first) % 2) : StreamTile{};
    const bool masked = at < tiles.full_first || at >= tiles.full_last || tile.k.count < size || (at + 1) * size > masked_from;
    if (masked) find_visible(item, tile.begin, {0, tile.k.count});
    score(item, tile);
    weigh_scores(item, tile.k.count, masked);
    weigh_values(item, tile, next, masked);
  }
}

}  // namespace fovea::cpu
