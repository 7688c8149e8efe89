// SPDX-License-Identifier: Apache-2.0
/// Latent attention on f32 operands. V is the beginning of K, so one tile, [key][row_stride] in f32, serves both matrix products. The
/// scores are dot products along the rows. The weighted sum walks down the columns.
#pragma once

#include "cpu/attention/gemm.hpp"
#include "cpu/attention/pack.hpp"
#include "cpu/attention/softmax.hpp"
#include "cpu/attention/stream.hpp"

namespace fovea::cpu::FOVEA_ISA {

inline constexpr int kDotRows = kBlockRows / 2;

/// Widens the rows. Returns false if some element is not finite.
template <class S>
static bool widen_rows(const LatentRows& from) {
  constexpr int kProbes = 4;  // independent sums, so that no addition waits for the one before
  auto* to = static_cast<float*>(from.keys);
  F32Math::Finite finite[kProbes];
  for (int key = 0; key < from.count; ++key, to += from.row_stride) {
    const auto* codes = static_cast<const typename S::Code*>(from.rows[key]);
    for (int d = 0; d < from.head_dim_qk; d += kProbes * kLanes) {  // 512 and 576 are multiples of every such step
#pragma GCC unroll 4
      for (int i = 0; i < kProbes; ++i) {
        const Vec values = load(S{}, codes + d + i * kLanes);
        F32Math::Finite::look(finite[i], values);
        store(F32{}, to + d + i * kLanes, values);
      }
    }
  }
  bool all = true;
  for (const F32Math::Finite& probe : finite) all &= probe.all();
  return all;
}

struct DotTile {
  const float* q = nullptr;
  std::int64_t q_stride = 0;
  const float* keys = nullptr;
  std::int64_t row_stride = 0;
  int head_dim = 0;
  float* scores = nullptr;
  std::int64_t score_stride = 0;
  const char* next = nullptr;  // a row to prefetch meanwhile
  int next_step = 0;           // bytes of it that each step prefetches
};

/// Multiplies kRows queries with four keys. The prefetched row goes into the second-level cache: the first is full of queries.
template <int kRows>
FOVEA_INLINE void dot_four(const DotTile& tile) {
  Vec sum[kRows][4];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = zero();
  const float *q = tile.q, *k = tile.keys;
  const char* next = tile.next;
  for (int d = 0; d < tile.head_dim; d += kLanes, q += kLanes, k += kLanes, next += tile.next_step) {
    __builtin_prefetch(next, 0, 2);
    Vec left[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) left[r] = load(F32{}, q + r * tile.q_stride);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const Vec right = load(F32{}, k + i * tile.row_stride);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) sum[r][i] = fma(left[r], right, sum[r][i]);
    }
  }
  store_sums(tile.scores, tile.score_stride, sum);
}

template <int kRows = kDotRows>
FOVEA_INLINE void dot_piece(int rows, const DotTile& tile) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return dot_four<kRows>(tile);
    dot_piece<kRows - 1>(rows, tile);
  }
}

/// Cuts a block into two pieces of about the same size. A piece of a single row would have too few independent sums to fill the
/// multipliers.
FOVEA_INLINE void dot_block(int rows, DotTile tile, const char* const (&next)[2]) {
  const int first = rows > 2 ? (rows + 1) / 2 : rows;
  tile.next = next[0];
  dot_piece(first, tile);
  tile.q += first * tile.q_stride;
  tile.scores += first * tile.score_stride;
  tile.next = next[1];
  dot_piece(rows - first, tile);
}

/// Prefetches the rows of the next tile while this one is multiplied; otherwise widening waits for memory. For every four keys, each of the
/// first four pieces prefetches one row. The other pieces prefetch what they multiply, which costs nothing.
static void shared_scores(const ScoreTile& tile) {
  DotTile dot{.q_stride = tile.q_stride,
              .row_stride = tile.row_stride,
              .head_dim = tile.head_dim,
              .score_stride = tile.score_stride,
              .next_step = tile.next_bytes * kLanes / tile.head_dim + 1};
  for (int i = 0; i < tile.block_count; ++i) {
    const RowBlock& block = tile.blocks[i];
    for (int key = block.key_begin / 4 * 4; key < block.key_end; key += 4) {
      dot.q = static_cast<const float*>(tile.q) + block.row * tile.q_stride;
      dot.keys = static_cast<const float*>(tile.keys) + key * tile.row_stride;
      dot.scores = tile.scores + block.row * tile.score_stride + key;
      const char* next[2];
      for (int piece = 0; piece < 2; ++piece) {
        const int row = key + 2 * i + piece;
        next[piece] = static_cast<const char*>(i < 2 && row < tile.next_count ? tile.next[row] : dot.keys);
      }
      dot_block(block.rows, dot, next);
    }
  }
}

static void shared_values(const ValueTile& tile) {
  for (int column = 0; column < tile.head_dim; column += kPanel) {
    const float* values = static_cast<const float*>(tile.values) + column;
    for (int i = 0; i < tile.block_count; ++i) {
      const RowBlock& block = tile.blocks[i];
      if (block.key_begin >= block.key_end) continue;
      multiply<F32Math>(block.rows, {.a = static_cast<const float*>(tile.p) + block.row * tile.p_stride + block.key_begin,
                                     .a_stride = tile.p_stride,
                                     .b = values + block.key_begin * tile.row_stride,
                                     .b_stride = tile.row_stride,
                                     .k = block.key_end - block.key_begin,
                                     .c = tile.acc + block.row * tile.acc_stride + column,
                                     .c_stride = tile.acc_stride,
                                     .rescale = tile.rescale + block.row});
    }
  }
}

inline constexpr AttentionKernels kSharedTileKernels{
    .arithmetic = "f32, one tile for K and V,",
    .block_rows = kBlockRows,
    .panel = kPanel,
    .depth = 1,
    .operand_bytes = sizeof(float),
    .shared_tile = true,
    .load_q = {load_q<F32Math, F32>, load_q<F32Math, F16>, load_q<F32Math, BF16>, load_q<F32Math, E4M3>},
    .pack_latent = {widen_rows<F32>, widen_rows<F16>, widen_rows<BF16>, widen_rows<E4M3>},
    .scores = shared_scores,
    .softmax = softmax<F32Math>,
    .values = shared_values,
};

}  // namespace fovea::cpu::FOVEA_ISA
