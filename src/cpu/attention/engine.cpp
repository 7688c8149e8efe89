// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <atomic>
#include <cmath>
#include <limits>

#include "cpu/attention/item.hpp"
#include "cpu/attention/schedule.hpp"
#include "cpu/parallel.hpp"
#include "op/common/dropout.hpp"

namespace fovea::cpu {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr double kLog2e = 1.4426950408889634;

float scale_at(const float* scale, const std::optional<ScaleDesc>& desc, std::int64_t batch, std::int64_t kv_head) {
  return desc && scale != nullptr ? scale[batch * desc->batch_stride + kv_head * desc->head_stride] : 1.0f;
}

/// Never 0 and never made infinite: -inf * 0 would be NaN, as 0 * inf.
float in_range(double factor, double least = std::numeric_limits<float>::min()) {
  constexpr double kMost = std::numeric_limits<float>::max();
  return static_cast<float>(std::isfinite(factor) ? std::copysign(std::clamp(std::abs(factor), least, kMost), factor) : factor);
}

/// Every factor of the score, folded into the exponent of two.
HeadFactors factors_of(const Item& item, std::int64_t kv_head) {
  const detail::AttentionCore& core = item.setup.core;
  const std::int64_t batch = item.setup.paged ? 0 : item.sequence.index;
  const double scale = core.scale * scale_at(item.call.q_scale, item.setup.q_scale, batch, kv_head) *
                       scale_at(item.call.k_scale, core.k_scale, batch, kv_head);
  // A scale that is too large for an exponent, or that a bias must not have, is applied before the softmax, by a cap that changes nothing.
  // So is one that is NaN: hidden scores must not meet it.
  constexpr double kMost = std::numeric_limits<float>::max();
  const double size = std::abs(scale);
  const bool in_scores = !(size * kLog2e <= kMost) || core.has_score_bias();
  const double cap = core.softcap == 0 && in_scores ? kMost : core.softcap;
  const double unit = cap > 0 ? unit_of_capped(cap) : size;
  return {.factor = in_range(unit * kLog2e), .soft_cap = soft_cap_of(size, cap), .unit = unit, .negate_q = scale < 0};
}

void load_queries(const Item& item, bool streamed) {
  const detail::AttentionCore& core = item.setup.core;
  const AttentionKernels& kernels = *item.setup.attention;
  const auto dtype = static_cast<std::size_t>(core.q_dtype);
  const auto element = static_cast<std::int64_t>(size_of(core.q_dtype));
  const std::int64_t batch = item.sequence.batch * core.q.batch;
  const auto source = [&](int row) {
    const std::int64_t flat = item.entry.row_begin + row, query = item.sequence.first_q + flat / core.group();
    const std::int64_t at = batch + query * core.q.row + (item.kv_head * core.group() + flat % core.group()) * core.q.head;
    return static_cast<const std::byte*>(item.call.q) + at * element;
  };
  constexpr int kAhead = 8;  // rows may lie pages apart, where no hardware prefetcher follows
  for (int row = 0; row < item.rows; ++row) {
    if (row + kAhead < item.rows) prefetch_row(source(row + kAhead), core.head_dim_qk * element);
    kernels.load_q[dtype](source(row), static_cast<int>(core.head_dim_qk), static_cast<int>(item.extents.q_stride), item.factors->negate_q,
                          static_cast<std::byte*>(item.scratch.q) + row * item.extents.q_stride * kernels.qk_bytes());
  }
  if (const auto arrange = kernels.arrange_q[static_cast<std::size_t>(core.kv_dtype)]; streamed && arrange != nullptr) {
    arrange(item.scratch.q, static_cast<int>(item.rows * item.extents.q_stride));
  }
  if (!streamed && kernels.pack_q != nullptr) kernels.pack_q(item.scratch.q, item.rows, item.extents.q_stride);
  if (item.setup.int8) load_q_scales(item);
  clear_sums(item);
}

/// Writes a finished row. A row that saw no key has a sum of exactly zero. Any other row has a weight of one, or a NaN.
void finish_row(const Item& item, int row, const RowSums& state) {
  const detail::AttentionCore& core = item.setup.core;
  const std::int64_t flat = item.entry.row_begin + row, query = item.sequence.first_q + flat / core.group();
  const std::int64_t head = item.kv_head * core.group() + flat % core.group();
  const std::int64_t batch = item.sequence.batch;
  const double maximum = state.maximum == kNothing ? 0.0 : state.maximum * item.factors->unit;
  float total = state.sum;
  if (item.call.sink != nullptr && state.sum != 0) total += static_cast<float>(std::exp(item.call.sink[head] - maximum));

  const auto dtype = static_cast<std::size_t>(core.out_dtype);
  const std::int64_t at = batch * core.out.batch + query * core.out.row + head * core.out.head;
  void* out = static_cast<std::byte*>(item.call.out) + at * static_cast<std::int64_t>(size_of(core.out_dtype));
  if (state.sum == 0 || std::isinf(total)) {
    alignas(64) static constexpr std::array<float, kLongestRow> kZeros{};
    item.setup.rows->store_divided[dtype](out, kZeros.data(), 1.0f, 1.0f, core.head_dim_v);
  } else if (item.setup.int8) {
    alignas(64) std::array<float, kLongestRow> values;
    restore_values(item, state.acc, total, values.data());
    item.setup.rows->store_divided[dtype](out, values.data(), 1.0f, 1.0f, core.head_dim_v);
  } else {
    const float v_scale = scale_at(item.call.v_scale, core.v_scale, item.setup.paged ? 0 : item.sequence.index, item.kv_head);
    item.setup.rows->store_divided[dtype](out, state.acc, total, v_scale * detail::keep_factor(core.dropout_p), core.head_dim_v);
  }
  if (item.call.lse != nullptr) {
    float& lse = item.call.lse[batch * core.lse.batch + query * core.lse.row + head * core.lse.head];
    const double shift = item.setup.int8 ? lse_shift(item, row) : 0.0;
    lse = state.sum == 0 ? kNothing : static_cast<float>(maximum + std::log(static_cast<double>(state.sum)) + shift);
  }
  if (item.call.max_logits != nullptr) {
    const detail::RowStrides& strides = item.setup.latent->max_logits;
    item.call.max_logits[batch * strides.batch + query * strides.row + head * strides.head] =
        state.maximum == kNothing ? kNothing : static_cast<float>(maximum);
  }
}

/// The partial results of one split, [row][head_dim_v + 2] floats.
float* partial_of(const Item& item, const WorkspaceMap& map, std::int64_t part) {
  const std::int64_t slot = item.entry.partial + (item.kv_head * item.entry.parts + part) * item.rows;
  return map.partials + slot * item.extents.partial_floats;
}

void store_partials(const Item& item, const WorkspaceMap& map) {
  const std::int64_t dv = item.setup.core.head_dim_v;
  float* to = partial_of(item, map, item.entry.part);
  for (int row = 0; row < item.rows; ++row, to += item.extents.partial_floats) {
    std::copy_n(item.scratch.acc + row * item.extents.acc_stride, dv, to);
    to[dv] = item.scratch.maximum[row];
    to[dv + 1] = item.scratch.sum[row];
  }
}

/// Combines the splits in the order in which one item would add their keys.
void add_partials(const Item& item, const WorkspaceMap& map) {
  const std::int64_t dv = item.setup.core.head_dim_v, stride = item.extents.partial_floats;
  for (int row = 0; row < item.rows; ++row) {
    RowSums total{item.scratch.acc, kNothing, 0};
    std::fill_n(total.acc, dv, 0.0f);
    for (int part = 0; part < item.entry.parts; ++part) {
      float* from = partial_of(item, map, part) + row * stride;
      RowSums sums{from, from[dv], from[dv + 1]};
      add_part(item, total, sums);
    }
    finish_row(item, row, total);
  }
}

/// Combines the splits in their order, whichever finishes last. Leaves out splits in which the row saw no key.
void combine_partials(const Item& item, const WorkspaceMap& map) {
  if (item.setup.core.exact_rows) return add_partials(item, map);
  const std::int64_t dv = item.setup.core.head_dim_v, stride = item.extents.partial_floats;
  for (int row = 0; row < item.rows; ++row) {
    float maximum = kNothing;
    for (int part = 0; part < item.entry.parts; ++part) maximum = std::max(maximum, partial_of(item, map, part)[row * stride + dv]);
    const float shift = maximum == kNothing ? 0 : maximum;
    float* acc = item.scratch.acc;
    std::fill_n(acc, dv, 0.0f);
    float sum = 0;
    for (int part = 0; part < item.entry.parts; ++part) {
      const float* from = partial_of(item, map, part) + row * stride;
      if (from[dv + 1] == 0) continue;
      const float weight = std::exp2((from[dv] - shift) * item.factors->factor);
      item.setup.rows->add_scaled[0](acc, from, weight, dv);
      sum += from[dv + 1] * weight;
    }
    finish_row(item, row, {acc, maximum, sum});
  }
}

void finish(const Item& item, const WorkspaceMap& map) {
  if (item.entry.parts == 1) {
    for (int row = 0; row < item.rows; ++row) {
      finish_row(item, row, {item.scratch.acc + row * item.extents.acc_stride, item.scratch.maximum[row], item.scratch.sum[row]});
    }
    return;
  }
  store_partials(item, map);
  const std::atomic_ref<std::int32_t> left(map.counters[item.entry.counter + item.kv_head]);
  if (left.fetch_sub(1, std::memory_order_acq_rel) == 1) combine_partials(item, map);
}

}  // namespace

void clear_sums(const Item& item) {
  std::fill_n(item.scratch.acc, item.rows * item.extents.acc_stride, 0.0f);
  std::fill_n(item.scratch.maximum, item.rows, kNothing);
  std::fill_n(item.scratch.sum, item.rows, 0.0f);
}

double unit_of_capped(double cap) { return cap > 0x1p-64 && cap < 0x1p64 ? cap : 1; }

SoftCap soft_cap_of(double scale, double cap) {
  if (cap == 0) return {};
  constexpr double kLeast = std::numeric_limits<float>::denorm_min();
  const double unit = unit_of_capped(cap);
  return {.scale = in_range(scale / unit), .cap = static_cast<float>(cap / unit), .into_cap = in_range(2 * kLog2e * scale / cap, kLeast)};
}

Item item_of_head(const Item& item, int head) {
  Item one = item;
  const std::int64_t row = static_cast<std::int64_t>(head) * item.head_rows;
  one.kv_head += head;
  one.heads = 1;
  one.scratch.q = static_cast<std::byte*>(item.scratch.q) + row * item.extents.q_stride * item.setup.attention->qk_bytes();
  one.scratch.acc += row * item.extents.acc_stride;
  one.scratch.maximum += row;
  one.scratch.sum += row;
  one.scratch.scores += row * item.extents.score_stride;
  one.scratch.rescale += row;
  one.factors += head;
  if (one.scratch.total_acc == nullptr) return one;
  one.scratch.total_acc += row * item.extents.acc_stride;
  one.scratch.total_maximum += row;
  one.scratch.total_sum += row;
  return one;
}

Row zero_row() {
  alignas(64) static constexpr std::array<float, kLongestRow> kZeros{};
  return kZeros.data();
}

void gather_rows(const Item& item, const KvStrides& strides, const void* base, detail::KeyRange keys, Row* rows) {
  const std::byte* head = static_cast<const std::byte*>(base) + item.kv_head * strides.head;
  if (!item.setup.paged) {
    const std::byte* row = head + item.sequence.batch * strides.batch + (item.sequence.first_k + keys.begin) * strides.row;
    for (std::int64_t i = 0; i < keys.size(); ++i, row += strides.row) rows[i] = row;
    return;
  }
  const std::int32_t* table = item.call.block_table + item.sequence.index * item.setup.table_stride;
  const std::int64_t page = item.setup.page;
  for (std::int64_t key = keys.begin, block = keys.begin / page; key < keys.end; ++block) {
    const std::int64_t end = std::min(keys.end, (block + 1) * page);
    const std::byte* row = head + table[block] * strides.block + (key - block * page) * strides.row;
    for (; key < end; ++key, row += strides.row) *rows++ = row;
  }
}

int gather_keys(const Item& item, detail::KeyRange keys, int buffer, Row* k, Row* v) {
  if (item.setup.latent) return gather_latent(item, keys, buffer, k, v);
  if (item.setup.kv_cache) return gather_codes(item, keys, k, v);
  gather_rows(item, item.setup.k, item.call.k, keys, k);
  gather_rows(item, item.setup.v, item.call.v, keys, v);
  return static_cast<int>(keys.size());
}

namespace {

/// Bits of a block mask, without those that a packed mask hides.
void show_listed(const Item& item, KeySpan keys) {
  const bool packed = item.setup.core.packed_mask.has_value();
  for (int row = 0; row < item.rows; ++row) {
    std::uint32_t* words = item.scratch.listed + row * listed_words(item.setup);
    for (int key = keys.begin; packed && key < keys.end; ++key) {
      if (!item.scratch.shown[row].shows(key)) words[key / kKeysOfWord] &= ~(std::uint32_t{1} << (key % kKeysOfWord));
    }
    item.scratch.shown[row] = {.bytes = reinterpret_cast<const std::uint8_t*>(words)};
  }
}

void find_shown(const Item& item, std::int64_t tile_begin) {
  const detail::SequenceBits bits = bits_of(item.setup, item.call, item.sequence);
  const auto begin = static_cast<int>(std::clamp<std::int64_t>(bits.first_key - tile_begin, 0, std::numeric_limits<int>::max()));
  for (int row = 0; row < item.rows; ++row) {
    const std::int64_t first = bits.first_bit + item.query_of(row) * bits.row_bits + tile_begin - bits.first_key;
    item.scratch.shown[row] = {.bytes = bits.bytes, .first = first, .begin = begin};
  }
}

}  // namespace

void find_visible(const Item& item, std::int64_t tile_begin, KeySpan keys) {
  const std::int64_t group = item.setup.core.group();
  std::int64_t query = item.query_of(0), left = group - item.entry.row_begin % group;
  for (int row = 0; row < item.rows; ++query, left = group) {
    const auto clamped = [&](std::int64_t key) {
      return static_cast<int>(std::clamp<std::int64_t>(key - tile_begin, keys.begin, keys.end));
    };
    const KeySpan seen{clamped(query + item.sequence.band.low), clamped(query + item.sequence.band.high + 1)};
    for (; left > 0 && row < item.rows; --left, ++row) item.scratch.visible[row] = seen;
  }
  if (item.setup.core.packed_mask) find_shown(item, tile_begin);
  if (item.setup.blocks) show_listed(item, keys);
}

std::int64_t first_masked_key(const Item& item) {
  if (!item.setup.core.packed_mask) return std::numeric_limits<std::int64_t>::max();
  return bits_of(item.setup, item.call, item.sequence).first_key;
}

KeySpan first_run(KeySpan seen, const KeyBits* bits) {
  if (bits == nullptr) return seen;
  KeySpan run = seen;
  while (run.begin < seen.end && !bits->shows(run.begin)) ++run.begin;
  run.end = run.begin;
  while (run.end < seen.end && bits->shows(run.end)) ++run.end;
  return run;
}

namespace {

/// Number of kv heads that one item of few rows takes. In most caches the heads of a token lie side by side, so together they are one run
/// of memory. Taken one after the other, their rows have holes between them.
std::int64_t heads_together(const Item& item, const Schedule& schedule) {
  const std::int64_t heads = item.setup.core.kv_heads, most = std::min<std::int64_t>(schedule.few_heads, kItemRows / item.head_rows);
  return ceil_div(heads, ceil_div(heads, most));
}

}  // namespace

void attend(const Setup& setup, const Call& call, std::byte* workspace) {
  const WorkspaceMap map = map_workspace(setup, workspace);
  const Extents extents(setup);
  const Schedule schedule = build_schedule(setup, call, map);
  const std::int64_t items = schedule.entries * setup.core.kv_heads;
  const int threads = worthwhile_threads(work_of(setup.core, static_cast<double>(schedule.cost)), items, setup.threads);

  *map.next = 0;
  parallel_for(threads, [&](int thread) {
    const Scratch scratch = map_scratch(setup, map.scratch + static_cast<std::size_t>(thread) * map.scratch_bytes);
    const std::atomic_ref<std::int32_t> next(*map.next);
    for (std::int64_t i = next.fetch_add(1); i < items; i = next.fetch_add(1)) {
      const WorkEntry& entry = map.entries[i / setup.core.kv_heads];
      Item item{.setup = setup, .call = call, .extents = extents, .scratch = scratch, .entry = entry};
      item.sequence = sequence_of(setup, call, entry.sequence);
      item.kv_head = i % setup.core.kv_heads;
      item.rows = static_cast<int>(entry.row_end - entry.row_begin);
      const bool few = item.sequence.seq_q * setup.core.group() <= setup.tuning.few_rows, streamed = few && !setup.tuning.packs_few;
      item.head_rows = static_cast<int>(rows_of_head(setup, item.rows));
      if (few) {
        const std::int64_t heads = heads_together(item, schedule);
        if (item.kv_head % heads != 0) continue;  // the item of the first of these heads computes them all
        item.heads = static_cast<int>(std::min(heads, setup.core.kv_heads - item.kv_head));
      }
      std::array<HeadFactors, kItemRows> factors;
      item.factors = factors.data();
      for (int head = 0; head < item.heads; ++head) {
        factors[static_cast<std::size_t>(head)] = factors_of(item, item.kv_head + head);
        load_queries(item_of_head(item, head), streamed);
      }
      streamed ? attend_streamed(item) : attend_packed(item);
      for (int head = 0; head < item.heads; ++head) finish(item_of_head(item, head), map);
    }
  });
}

}  // namespace fovea::cpu
