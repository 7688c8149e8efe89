// SPDX-License-Identifier: Apache-2.0
#include "cpu/attention/schedule.hpp"

#include "op/common/workspace_arena.hpp"

namespace fovea::cpu {
namespace {

/// Largest number of splits of a sequence. A bound of millions of tokens thus reserves a bounded number of partial results.
constexpr std::int64_t kMaxParts = 32;

/// The same where rows are exact. Longer sequences are not split.
constexpr std::int64_t kMaxExactParts = 256;

std::int64_t max_parts(const Setup& setup) { return setup.core.exact_rows ? kMaxExactParts : kMaxParts; }

/// Keys of one split: split_keys times a power of two, so that there are at most kMaxParts. Depends on this sequence alone.
std::int64_t part_keys(const Setup& setup, std::int64_t keys) {
  std::int64_t size = setup.tuning.split_keys;
  while (!setup.core.exact_rows && ceil_div(keys, size) > kMaxParts) size *= 2;
  return size;
}

/// Whether a sequence is split. Exact rows have the same parts in any case.
bool is_split(const Setup& setup, std::int64_t rows, std::int64_t keys) {
  return rows <= setup.tuning.split_rows && (!setup.core.exact_rows || ceil_div(keys, setup.tuning.split_keys) <= kMaxExactParts);
}

/// Overheads in units of (key, row) pairs. Packing a tile, or loading it from memory, takes as long as kCostOfTile rows of arithmetic. An
/// entry costs as much as kCostOfEntry keys of one row.
constexpr std::int64_t kCostOfTile = 12, kCostOfEntry = 64;

class Builder {
 public:
  Builder(const Setup& setup, const WorkspaceMap& map) : setup_(setup), map_(map) {}

  void add(const Sequence& s) {
    const std::int64_t rows = s.seq_q * setup_.core.group();
    if (rows == 0) return;
    const detail::KeyRange keys = detail::keys_seen_by_some(s.band, 0, s.seq_q, s.seq_k);
    const std::int64_t before = done_.entries;
    is_split(setup_, rows, s.seq_k) ? add_parts(s, rows, keys) : add_tiles(s, rows);
    if (rows <= setup_.tuning.few_rows) few_ += done_.entries - before;
  }

  Schedule finish() {
    const auto longer = [](const WorkEntry& a, const WorkEntry& b) { return a.cost > b.cost; };
    const auto before = [&](const WorkEntry& a, const WorkEntry& b) {
      if (a.cost != b.cost) return longer(a, b);
      return a.sequence != b.sequence ? a.sequence < b.sequence : a.row_begin + a.key_begin < b.row_begin + b.key_begin;
    };
    WorkEntry* end = map_.entries + done_.entries;
    if (!std::is_sorted(map_.entries, end, longer)) std::sort(map_.entries, end, before);
    done_.few_heads = setup_.core.kv_heads;
    // Two conditions: there are enough items for the threads, and the first one, which is the longest, does not keep all others waiting.
    const auto too_few = [&] { return few_ * ceil_div(setup_.core.kv_heads, done_.few_heads) < 4 * setup_.threads; };
    const auto too_long = [&] { return map_.entries->cost * done_.few_heads * setup_.threads > done_.cost; };
    while (few_ > 0 && done_.few_heads > 1 && (too_few() || too_long())) done_.few_heads = ceil_div(done_.few_heads, 2);
    return done_;
  }

 private:
  void push(WorkEntry entry, std::int64_t keys) {
    entry.cost = keys * (entry.row_end - entry.row_begin + kCostOfTile) + kCostOfEntry;
    map_.entries[done_.entries++] = entry;
    done_.cost += entry.cost * setup_.core.kv_heads;
  }

  void add_tiles(const Sequence& s, std::int64_t rows) {
    const std::int64_t tiles = ceil_div(rows, setup_.tuning.q_rows);
    const std::int64_t group = setup_.core.group();
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      WorkEntry entry{.sequence = s.index, .row_begin = rows * tile / tiles, .row_end = rows * (tile + 1) / tiles};
      const detail::KeyRange keys = detail::keys_seen_by_some(s.band, entry.row_begin / group, (entry.row_end - 1) / group + 1, s.seq_k);
      entry.key_begin = keys.begin;
      entry.key_end = keys.end;
      push(entry, keys.size());
    }
  }

  void add_parts(const Sequence& s, std::int64_t rows, detail::KeyRange keys) {
    const std::int64_t size = part_keys(setup_, s.seq_k);
    const std::int64_t first = keys.begin / size, parts = std::max<std::int64_t>(ceil_div(keys.end, size) - first, 1);
    WorkEntry entry{.sequence = s.index, .row_end = rows, .parts = static_cast<std::int32_t>(parts)};
    if (parts > 1) {
      entry.partial = partials_;
      entry.counter = counters_;
      for (std::int64_t h = 0; h < setup_.core.kv_heads; ++h) map_.counters[counters_ + h] = entry.parts;
      partials_ += parts * rows * setup_.core.kv_heads;
      counters_ += setup_.core.kv_heads;
    }
    for (std::int64_t part = 0; part < parts; ++part) {
      entry.part = static_cast<std::int32_t>(part);
      entry.key_begin = std::max(keys.begin, (first + part) * size);
      entry.key_end = std::min(keys.end, (first + part + 1) * size);
      push(entry, entry.key_end - entry.key_begin);
    }
  }

  const Setup& setup_;
  const WorkspaceMap& map_;
  Schedule done_{};
  std::int64_t partials_ = 0, counters_ = 0, few_ = 0;
};

}  // namespace

std::int64_t rows_of_head(const Setup& setup, std::int64_t rows) {
  return setup.tuning.packs_few ? round_up(rows, setup.attention->block_rows) : rows;
}

Extents::Extents(const Setup& setup) {
  const AttentionKernels& kernels = *setup.attention;
  const std::int64_t few = std::min<std::int64_t>(setup.tuning.few_rows, setup.core.max_seq_q * setup.core.group());
  const std::int64_t together = std::min<std::int64_t>(rows_of_head(setup, few) * setup.core.kv_heads, kItemRows);
  item_rows = std::max<std::int64_t>(together, setup.tuning.q_rows);
  step_rows = std::max<std::int64_t>(together, setup.tuning.chunk_rows);
  constexpr std::int64_t kWidestPiece = 32;  // elements that a kernel takes at once
  q_stride = round_up(setup.core.head_dim_qk, kWidestPiece);
  constexpr std::int64_t kOffPowerOfTwo = 16;  // otherwise the same columns of all keys share a few cache sets
  qk_padded = kernels.shared_tile ? setup.core.head_dim_qk + kOffPowerOfTwo : round_up(setup.core.head_dim_qk, kernels.depth);
  acc_stride = round_up(round_up(setup.core.head_dim_v, kWidestPiece), kernels.panel);
  row_pointers = std::max(setup.tuning.kv_tile, setup.tuning.stream_tile);
  score_stride = row_pointers + 32;  // no power of two, or rows share cache sets; whole lines for bf16 weights
  partial_floats = setup.core.head_dim_v + 2;
}

Work work_of(const detail::AttentionCore& core, double cost) {
  return {.products = cost * static_cast<double>(core.head_dim_qk + core.head_dim_v)};
}

int threads_of(const detail::AttentionCore& core) {
  const std::int64_t rows = core.total_q * core.group(), tiles = rows / kMinQRows + core.batch;
  const std::int64_t parts = std::min(ceil_div(core.max_seq_k, kSplitKeys), kMaxParts), entries = rows / kMinQRows + core.batch * parts;
  const double cost =
      static_cast<double>(core.max_seq_k) * static_cast<double>(rows + kCostOfTile * tiles) + static_cast<double>(kCostOfEntry * tiles);
  return worthwhile_threads(work_of(core, cost * static_cast<double>(core.kv_heads)), entries * core.kv_heads, planned_threads());
}

ScheduleBounds schedule_bounds(const Setup& setup) {
  const detail::AttentionCore& core = setup.core;
  const std::int64_t group = core.group();
  const std::int64_t rows = core.total_q * group;
  // A sequence has at most this many splits. With splits of 2^n * split_keys keys there are at most kMaxParts.
  const std::int64_t parts = std::min(ceil_div(core.max_seq_k, setup.tuning.split_keys), max_parts(setup));
  const std::int64_t split_rows = std::min(rows, core.batch * std::min<std::int64_t>(setup.tuning.split_rows, core.max_seq_q * group));
  ScheduleBounds bounds{};
  bounds.entries = rows / kMinQRows + core.batch * (1 + parts);  // kMinQRows, not q_rows: monotone although q_rows grows with bounds
  if (parts > 1) {
    bounds.counters = core.batch * core.kv_heads;
    bounds.partials = split_rows * core.kv_heads * parts;
  }
  return bounds;
}

WorkspaceMap map_workspace(const Setup& setup, std::byte* base) {
  const ScheduleBounds bounds = schedule_bounds(setup);
  detail::WorkspaceArena arena(base);
  WorkspaceMap map{};
  map.next = arena.take<std::int32_t>(1);
  map.entries = arena.take<WorkEntry>(bounds.entries);
  map.counters = arena.take<std::int32_t>(bounds.counters);
  map.partials = arena.take<float>(bounds.partials * Extents(setup).partial_floats);
  map_scratch(setup, nullptr, &map.scratch_bytes);
  map.scratch = arena.take<std::byte>(static_cast<std::int64_t>(map.scratch_bytes) * setup.threads);
  map.bytes = arena.bytes();
  return map;
}

Scratch map_scratch(const Setup& setup, std::byte* base, std::size_t* bytes) {
  const Extents extents(setup);
  const Tuning& tuning = setup.tuning;
  const std::int64_t operand = setup.attention->operand_bytes;
  detail::WorkspaceArena arena(base);
  Scratch s{};
  s.q = arena.take<std::byte>(extents.item_rows * extents.q_stride * setup.attention->qk_bytes());
  s.acc = arena.take<float>(extents.item_rows * extents.acc_stride);
  s.maximum = arena.take<float>(extents.item_rows);
  s.sum = arena.take<float>(extents.item_rows);
  if (setup.core.exact_rows && setup.core.max_seq_k > tuning.split_keys) {
    s.total_acc = arena.take<float>(extents.item_rows * extents.acc_stride);
    s.total_maximum = arena.take<float>(extents.item_rows);
    s.total_sum = arena.take<float>(extents.item_rows);
  }
  if (setup.int8) {
    s.q_scales = arena.take<float>(tuning.q_rows);
    s.k_scales = arena.take<float>(tuning.kv_tile + setup.attention->panel);
  }
  s.visible = arena.take<KeySpan>(tuning.q_rows);
  if (setup.core.packed_mask || setup.blocks) s.shown = arena.take<KeyBits>(tuning.q_rows);
  if (setup.blocks) s.listed = arena.take<std::uint32_t>(tuning.q_rows * listed_words(setup));
  s.scores = arena.take<float>(extents.step_rows * extents.score_stride);
  if (setup.core.has_score_bias()) s.bias = arena.take<float>(tuning.chunk_rows * extents.score_stride);
  s.weights =
      operand == sizeof(float) ? static_cast<void*>(s.scores) : arena.take<std::byte>(tuning.chunk_rows * extents.score_stride * operand);
  s.rescale = arena.take<float>(extents.step_rows);
  s.blocks = arena.take<RowBlock>(tuning.chunk_rows);
  s.keys = arena.take<std::byte>(tuning.kv_tile * extents.qk_padded * setup.attention->qk_bytes());
  s.values = setup.attention->shared_tile ? s.keys : arena.take<std::byte>(tuning.kv_tile * extents.acc_stride * operand);
  const std::int64_t lists = setup.kv_cache ? 2 : 1;
  for (int i = 0; i < 2; ++i) {
    s.k_rows[i] = arena.take<Row>(extents.row_pointers * lists);
    s.v_rows[i] = arena.take<Row>(extents.row_pointers * lists);
    if (setup.latent && setup.latent->packed()) s.decoded[i] = arena.take<std::uint16_t>(extents.row_pointers * setup.core.head_dim_qk);
  }
  if (setup.kv_cache) s.decoded_kv = arena.take<float>(tuning.kv_tile * (setup.kv_cache->k.stride + setup.kv_cache->v.stride));
  if (bytes != nullptr) *bytes = arena.bytes();
  return s;
}

Schedule build_schedule(const Setup& setup, const Call& call, const WorkspaceMap& map) {
  Builder builder(setup, map);
  for (std::int64_t index = 0; index < setup.core.batch; ++index) builder.add(sequence_of(setup, call, index));
  return builder.finish();
}

}  // namespace fovea::cpu
