// SPDX-License-Identifier: Apache-2.0
/// The five matrix products of the backward pass (FlashAttention-2, algorithm 2), on transposed scores. P^T and dS^T are then the left
/// operands of dV = P^T dO and dK = dS^T Q. Only dQ = dS K needs a transposition.
#include <cmath>
#include <limits>

#include "cpu/attention/item.hpp"
#include "cpu/attention/score_bias.hpp"
#include "cpu/attention_backward/pair.hpp"

namespace fovea::cpu {
namespace {

/// The keys of one step, and the queries that see them.
struct Chunk {
  int key = 0, keys = 0;  // from the begin of the key tile
  int blocks = 0;
  KeySpan queries{};  // whole panels
};

/// Finds the blocks of rows [begin, end) that see anything, and for each the range that its rows see. Rows count from `begin`.
template <class VisibleKeys>
int find_blocks(const Head& head, int begin, int end, VisibleKeys&& visible_keys) {
  const int depth = head.kernels().depth, block_rows = head.kernels().block_rows;
  int count = 0;
  for (int row = begin; row < end; row += block_rows) {
    const int last = std::min(row + block_rows, end);
    KeySpan some{std::numeric_limits<int>::max(), 0};
    for (int r = row; r < last; ++r) {
      const KeySpan one = visible_keys(r);
      if (one.begin < one.end) some = {std::min(some.begin, one.begin), std::max(some.end, one.end)};
    }
    if (some.begin >= some.end) continue;
    head.scratch.blocks[count++] = {row - begin, last - row, some.begin / depth * depth, static_cast<int>(round_up(some.end, depth))};
  }
  return count;
}

Chunk make_chunk(const Head& head, const Pair& pair, int key) {
  Chunk chunk{.key = key, .keys = std::min(head.setup.tuning.chunk_keys, pair.keys - key)};
  const KeySpan* visible = head.scratch.visible;
  chunk.blocks = find_blocks(head, key, key + chunk.keys, [&](int k) { return pair.masked ? visible[k] : KeySpan{0, pair.queries}; });
  if (chunk.blocks == 0) return chunk;
  KeySpan some{head.scratch.blocks[0].key_begin, 0};
  for (int i = 0; i < chunk.blocks; ++i) {
    const RowBlock& block = head.scratch.blocks[i];
    some = {std::min(some.begin, block.key_begin), std::max(some.end, block.key_end)};
  }
  const int panel = head.kernels().panel;
  chunk.queries = {some.begin / panel * panel, static_cast<int>(round_up(some.end, panel))};
  return chunk;
}

/// S^T = K Q^T and dP^T = V dO^T.
void multiply_scores(const Head& head, const Pair& pair, const Chunk& chunk) {
  const BackwardScratch& s = head.scratch;
  const BackwardExtents& e = head.extents;
  const std::int64_t operand = head.kernels().operand_bytes;
  ScoreTile tile{.q = s.k + chunk.key * e.qk_row * operand,
                 .keys = s.q_keys + pair.query * e.qk_keys * operand,
                 .scores = s.scores,
                 .q_stride = e.qk_row,
                 .score_stride = e.score_stride,
                 .head_dim = static_cast<int>(e.qk_keys),
                 .blocks = s.blocks,
                 .block_count = chunk.blocks};
  head.kernels().scores(tile);
  tile.q = s.v + chunk.key * e.v_row * operand;
  tile.keys = s.dout_keys + pair.query * e.v_keys * operand;
  tile.scores = s.gradients;
  tile.q_stride = e.v_row;
  tile.head_dim = static_cast<int>(e.v_keys);
  head.kernels().scores(tile);
}

/// The queries of a chunk that exist; its last panel may have more.
KeySpan present_queries(const Pair& pair, const Chunk& chunk) { return {chunk.queries.begin, std::min(chunk.queries.end, pair.queries)}; }

/// Before the softmax: ALiBi and bias as (key, query), what dropout leaves, and dP of these pairs.
void load_score_bias(const Head& head, const Pair& pair, const Chunk& chunk) {
  const BackwardScratch& s = head.scratch;
  const std::int64_t stride = head.extents.score_stride, key = pair.key + chunk.key;
  const ScoreBias terms(head.setup.forward, head.call.forward, head.sequence, head.index);
  const KeySpan queries = present_queries(pair, chunk);
  if (s.bias != nullptr) {
    std::fill_n(s.bias, head.setup.tuning.chunk_keys * stride, 0.0f);
    for (int query = queries.begin; query < queries.end; ++query) {
      terms.load(pair.query + query, key, chunk.keys, 1.0f, s.bias_row);
      for (int i = 0; i < chunk.keys; ++i) s.bias[i * stride + query] = s.bias_row[i];
    }
  }
  if (s.kept == nullptr) return;
  std::fill_n(s.kept, head.setup.tuning.chunk_keys * stride, char{1});
  for (int query = queries.begin; query < queries.end; ++query)
    terms.for_dropped(pair.query + query, key, chunk.keys, [&](int i) { s.kept[i * stride + query] = 0; });
  const float factor = detail::keep_factor(head.core().dropout_p);
  for (int i = 0; i < chunk.keys; ++i) {
    for (int query = queries.begin; query < queries.end; ++query)
      s.gradients[i * stride + query] *= s.kept[i * stride + query] != 0 ? factor : 0.0f;
  }
}

/// After it: dropped weights have no share in dV, and the gradient of the bias grows.
void add_score_gradients(const Head& head, const Pair& pair, const Chunk& chunk) {
  const BackwardScratch& s = head.scratch;
  const std::int64_t stride = head.extents.score_stride, operand = head.kernels().operand_bytes;
  const KeySpan queries = present_queries(pair, chunk);
  for (int i = 0; s.kept != nullptr && i < chunk.keys; ++i) {
    for (int query = queries.begin; query < queries.end; ++query)
      if (s.kept[i * stride + query] == 0) std::fill_n(s.p + (i * stride + query) * operand, operand, std::byte{});
  }
  if (head.dbias == nullptr) return;
  const detail::BiasStrides& shape = head.setup.dbias_extents;
  for (int i = 0; i < chunk.keys; ++i) {
    const KeySpan seen = pair.masked ? s.visible[chunk.key + i] : KeySpan{0, pair.queries};
    for (int query = seen.begin; query < seen.end; ++query) {
      const std::int64_t row = shape.row == 1 ? 0 : pair.query + query, key = shape.key == 1 ? 0 : pair.key + chunk.key + i;
      head.dbias[row * shape.key + key] += s.dbias[i * stride + query];
    }
  }
}

/// Replaces what lists and bits hide by zeros.
void hide_unseen(const Head& head, const Chunk& chunk) {
  const BackwardScratch& s = head.scratch;
  const std::int64_t stride = head.extents.score_stride, operand = head.kernels().operand_bytes;
  for (int i = 0; i < chunk.keys; ++i) {
    const int key = chunk.key + i;
    for (int query = s.visible[key].begin; query < s.visible[key].end; ++query) {
      if (is_shown(head, query, key)) continue;
      const std::int64_t at = i * stride + query;
      std::fill_n(s.p + at * operand, operand, std::byte{});
      std::fill_n(s.ds + at * operand, operand, std::byte{});
      if (head.dbias != nullptr) s.dbias[at] = 0;
    }
  }
}

void differentiate_softmax(const Head& head, const Pair& pair, const Chunk& chunk) {
  const detail::AttentionCore& core = head.core();
  const BackwardScratch& s = head.scratch;
  const int keys = static_cast<int>(round_up(chunk.keys, 8));  // no query sees the absent keys
  head.kernels().gradient({.scores = s.scores,
                           .gradients = s.gradients,
                           .p = s.p,
                           .ds = s.ds,
                           .stride = head.extents.score_stride,
                           .rows = keys,
                           .begin = chunk.queries.begin,
                           .end = chunk.queries.end,
                           .visible = pair.masked ? s.visible + chunk.key : nullptr,
                           .shift = s.shift + pair.query,
                           .delta = s.delta + pair.query,
                           .bias = s.bias,
                           .dbias = head.dbias != nullptr ? s.dbias : nullptr,
                           .factor = static_cast<float>(core.softcap > 0 ? unit_of_capped(core.softcap) : core.scale),
                           .soft_cap = soft_cap_of(core.scale, core.softcap)});
  if (pair.hidden) hide_unseen(head, chunk);
  head.kernels().transpose_gradient({.ds = s.ds,
                                     .to = s.ds_rows + chunk.key * head.kernels().operand_bytes,
                                     .stride = head.extents.score_stride,
                                     .to_stride = head.extents.ds_stride,
                                     .keys = keys,
                                     .begin = chunk.queries.begin,
                                     .end = chunk.queries.end});
}

/// acc[row] += weights[row] * values, over the elements of the blocks that find_blocks() found last.
struct Product {
  const std::byte* weights = nullptr;
  std::int64_t weight_stride = 0;
  const std::byte* values = nullptr;  // packed
  const Row* value_rows = nullptr;
  int tile = 0;  // rows of a panel of values
  float* acc = nullptr;
  std::int64_t acc_stride = 0, dim = 0;
  bool exact = false;
};

/// Multiplies values that are not all finite: each row multiplies exactly what it sees.
template <class ForRuns>
void multiply_exactly(const Head& head, const Product& product, int rows, ForRuns&& for_runs) {
  const bool f32 = head.kernels().operand_bytes == sizeof(float);
  const RowKernels& kernels = *head.setup.forward.rows;
  for (int row = 0; row < rows; ++row) {
    for_runs(row, [&](KeySpan run) {
      const int count = run.end - run.begin;
      const std::byte* weights = product.weights + (row * product.weight_stride + run.begin) * head.kernels().operand_bytes;
      std::fill_n(head.scratch.exact, count, 0.0f);
      kernels.add_scaled[static_cast<std::size_t>(f32 ? DType::f32 : DType::bf16)](head.scratch.exact, weights, 1.0f, count);
      kernels.stream_values[head.dtype()]({.p = head.scratch.exact,
                                           .values = {.rows = product.value_rows + run.begin, .count = count},
                                           .acc = product.acc + row * product.acc_stride,
                                           .acc_stride = product.acc_stride,
                                           .rows = 1,
                                           .head_dim = static_cast<int>(product.dim)});
    });
  }
}

void multiply(const Head& head, const Product& product, int blocks) {
  head.kernels().values({.p = product.weights,
                         .values = product.values,
                         .acc = product.acc,
                         .rescale = head.scratch.ones,
                         .p_stride = product.weight_stride,
                         .acc_stride = product.acc_stride,
                         .kv_tile = product.tile,
                         .head_dim = static_cast<int>(product.dim),
                         .blocks = head.scratch.blocks,
                         .block_count = blocks});
}

/// dV += P^T dO and dK += dS^T Q.
void add_key_gradients(const Head& head, const Pair& pair, const Chunk& chunk) {
  const BackwardScratch& s = head.scratch;
  const BackwardExtents& e = head.extents;
  const std::int64_t operand = head.kernels().operand_bytes;
  const auto seen = [&](int row, auto&& multiply_run) { for_queries(head, pair, chunk.key + row, multiply_run); };
  const Product products[] = {{.weights = s.p,
                               .weight_stride = e.score_stride,
                               .values = s.dout_values + pair.query * e.v_values * operand,
                               .value_rows = s.dout_rows + pair.query,
                               .tile = head.setup.tuning.q_tile,
                               .acc = s.dv + chunk.key * e.v_values,
                               .acc_stride = e.v_values,
                               .dim = head.core().head_dim_v,
                               .exact = !pair.finite.dout},
                              {.weights = s.ds,
                               .weight_stride = e.score_stride,
                               .values = s.q_values + pair.query * e.qk_values * operand,
                               .value_rows = s.q_rows + pair.query,
                               .tile = head.setup.tuning.q_tile,
                               .acc = s.dk + chunk.key * e.qk_values,
                               .acc_stride = e.qk_values,
                               .dim = head.core().head_dim_qk,
                               .exact = !pair.finite.q}};
  for (const Product& product : products) {
    product.exact ? multiply_exactly(head, product, chunk.keys, seen) : multiply(head, product, chunk.blocks);
  }
}

/// dQ += dS K, once dS is complete.
void add_query_gradients(const Head& head, const Pair& pair) {
  const BackwardScratch& s = head.scratch;
  const BackwardExtents& e = head.extents;
  const Product product{.weights = s.ds_rows,
                        .weight_stride = e.ds_stride,
                        .values = s.k_values,
                        .value_rows = s.k_rows,
                        .tile = head.setup.tuning.kv_tile,
                        .acc = s.dq + pair.query * e.qk_values,
                        .acc_stride = e.qk_values,
                        .dim = head.core().head_dim_qk};
  if (!pair.finite_keys) {
    return multiply_exactly(head, product, pair.queries,
                            [&](int query, auto&& multiply_run) { for_keys(head, pair, query, multiply_run); });
  }
  multiply(head, product, find_blocks(head, 0, pair.queries, [&](int query) { return keys_of(head, pair, query); }));
}

void differentiate_pair(const Head& head, const Pair& pair) {
  const BackwardScratch& s = head.scratch;
  const BackwardTuning& tuning = head.setup.tuning;
  if (pair.masked) {
    for (int key = 0; key < tuning.kv_tile; ++key) s.visible[key] = key < pair.keys ? queries_of(head, pair, key) : KeySpan{};
    std::fill_n(s.ds_rows, tuning.q_tile * head.extents.ds_stride * head.kernels().operand_bytes, std::byte{});
  }
  for (int key = 0; key < pair.keys; key += tuning.chunk_keys) {
    const Chunk chunk = make_chunk(head, pair, key);
    if (chunk.blocks == 0) continue;
    multiply_scores(head, pair, chunk);
    const bool plain = s.bias == nullptr && s.kept == nullptr;
    if (!plain) load_score_bias(head, pair, chunk);
    differentiate_softmax(head, pair, chunk);
    if (!plain) add_score_gradients(head, pair, chunk);
    add_key_gradients(head, pair, chunk);
  }
  add_query_gradients(head, pair);
}

/// Returns whether every element of K is finite.
bool load_keys(const Head& head, std::int64_t begin, int count) {
  const BackwardScratch& s = head.scratch;
  const BackwardExtents& e = head.extents;
  const AttentionKernels& kernels = head.kernels();
  const int qk = static_cast<int>(head.core().head_dim_qk), dv = static_cast<int>(head.core().head_dim_v);
  for (int key = 0; key < count; ++key) {
    head.prefetch_key(head.call.forward.k, head.setup.k, begin + key, qk);
    head.prefetch_key(head.call.forward.v, head.setup.v, begin + key, dv);
    s.k_rows[key] = head.key_row(head.call.forward.k, head.setup.k, begin + key);
    s.v_rows[key] = head.key_row(head.call.forward.v, head.setup.v, begin + key);
    kernels.load_q[head.dtype()](s.k_rows[key], qk, static_cast<int>(e.qk_row), false, s.k + key * e.qk_row * kernels.operand_bytes);
    kernels.load_q[head.dtype()](s.v_rows[key], dv, static_cast<int>(e.v_row), false, s.v + key * e.v_row * kernels.operand_bytes);
  }
  const int padded = static_cast<int>(round_up(count, std::max(kernels.depth, kPackedRows)));
  for (int key = count; key < padded; ++key) s.k_rows[key] = zero_row();
  return kernels.pack_values[head.dtype()](s.k_rows, padded, qk, head.setup.tuning.kv_tile, s.k_values);
}

}  // namespace

void differentiate_tile(const Head& head, std::int64_t begin, int count) {
  const BackwardTuning& tuning = head.setup.tuning;
  const BackwardScratch& s = head.scratch;
  const detail::Band& band = head.sequence.band;
  std::fill_n(s.dk, count * head.extents.qk_values, 0.0f);
  std::fill_n(s.dv, count * head.extents.v_values, 0.0f);
  const std::int64_t first = std::max<std::int64_t>(begin - band.high, 0), last = std::min(begin + count - band.low, head.sequence.seq_q);
  if (band.low > band.high || first >= last) return;

  Pair pair{.key = begin, .keys = count};
  bool loaded = false;
  for (pair.query = first / tuning.q_tile * tuning.q_tile; pair.query < last; pair.query += tuning.q_tile) {
    pair.queries = static_cast<int>(std::min<std::int64_t>(tuning.q_tile, head.sequence.seq_q - pair.query));
    if (!find_shown(head, pair)) continue;
    if (!loaded) pair.finite_keys = load_keys(head, begin, count), loaded = true;
    pair.finite = s.finite[pair.query / tuning.q_tile];
    const bool whole = pair.keys == tuning.kv_tile && pair.queries == tuning.q_tile;
    const bool finite = pair.finite_keys && pair.finite.q && pair.finite.dout;
    const bool seen = pair.key - (pair.query + pair.queries - 1) >= band.low && pair.key + pair.keys - 1 - pair.query <= band.high;
    pair.masked = !whole || !finite || !seen || pair.hidden;
    differentiate_pair(head, pair);
  }
}

}  // namespace fovea::cpu
