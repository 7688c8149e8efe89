// SPDX-License-Identifier: Apache-2.0
/// Decode: few query rows, so each K and V element is used a few times only and packing it would cost more than multiplying it. Rows are
/// read where they lie; each phase prefetches what the next one reads.
#pragma once

#include "cpu/attention/arithmetic.hpp"
#include "cpu/kernels.hpp"

namespace fovea::cpu::FOVEA_ISA {

FOVEA_INLINE void prefetch_rows(const Row* rows, int count, int bytes) {
  for (int i = 0; i < count; ++i) {
    const char* line = static_cast<const char*>(rows[i]);
    for (int at = 0; at < bytes; at += 64) prefetch(line + at);
  }
}

/// A piece of a row, from element d on; with kTail, only what is left of the row.
template <class Math, class S, bool kTail>
FOVEA_INLINE typename Math::StreamReg load_stream_at(const void* row, int d, int head_dim) {
  const auto* codes = static_cast<const typename S::Code*>(row) + d;
  if constexpr (kTail) {
    typename S::Code some[Math::kStreamWidth] = {};
    __builtin_memcpy(some, codes, static_cast<unsigned long>(head_dim - d) * sizeof(typename S::Code));
    return Math::load_stream(S{}, some);
  }
  return Math::load_stream(S{}, codes);
}

/// kRows queries against four keys, one piece of each.
template <class Math, class S, int kRows, bool kTail>
FOVEA_INLINE void score_step(const StreamScores& tile, const Row (&keys)[4], const typename Math::Operand* q, int d, Vec (&sum)[kRows][4]) {
  typename Math::StreamReg left[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) left[r] = Math::load_stream_q(S{}, q + r * tile.q_stride + d);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const typename Math::StreamReg k = load_stream_at<Math, S, kTail>(keys[i], d, tile.head_dim);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) sum[r][i] = Math::stream_multiply_add(left[r], k, sum[r][i]);
  }
}

/// kRows queries against four keys: one pass over the rows, one transposing sum for each query.
template <class Math, class S, int kRows>
FOVEA_INLINE void score_four(const StreamScores& tile, int row, int key) {
  const auto* q = static_cast<const typename Math::Operand*>(tile.q) + row * tile.q_stride;
  const Row keys[4] = {tile.keys[key], tile.keys[key + 1], tile.keys[key + 2], tile.keys[key + 3]};
  Vec sum[kRows][4];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = zero();
  int d = 0;
  for (; d + Math::kStreamWidth <= tile.head_dim; d += Math::kStreamWidth) score_step<Math, S, kRows, false>(tile, keys, q, d, sum);
  if (d < tile.head_dim) score_step<Math, S, kRows, true>(tile, keys, q, d, sum);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) store_sums(tile.scores + (row + r) * tile.score_stride + key, sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
}

template <class Math, class S>
static void stream_scores(const StreamScores& tile) {
  for (int key = 0; key < tile.count; key += 4) {
    if (tile.next != nullptr) prefetch_rows(tile.next + key, tile.count - key < 4 ? tile.count - key : 4, tile.next_bytes);
    int row = 0;
    for (; row + kStreamRows <= tile.rows; row += kStreamRows) score_four<Math, S, kStreamRows>(tile, row, key);
    for (; row < tile.rows; ++row) score_four<Math, S, 1>(tile, row, key);
  }
}

/// kRows x kPieces accumulators over `count` keys.
template <class S, int kRows, int kPieces, bool kTail>
FOVEA_INLINE void weigh_columns(const StreamValues& tile, int row, int column, int key, int count) {
  constexpr int kWidth = F32Math::kStreamWidth;
  float* acc = tile.acc + row * tile.acc_stride + column;
  Two sum[kRows][kPieces];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < kPieces; ++j) sum[r][j] = load_two_as(S{}, acc + r * tile.acc_stride + j * kWidth);
  }
  if (key == 0 && tile.rescale != nullptr) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec rescale = broadcast(tile.rescale + row + r);
#pragma GCC unroll 8
      for (int j = 0; j < kPieces; ++j) sum[r][j] = {mul(sum[r][j].first, rescale), mul(sum[r][j].second, rescale)};
    }
  }
  const float* p = tile.p + row * tile.p_stride + key;
  for (int i = 0; i < count; ++i, ++p) {
    Vec weight[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) weight[r] = broadcast(p + r * tile.p_stride);
#pragma GCC unroll 8
    for (int j = 0; j < kPieces; ++j) {
      const Two v = load_stream_at<F32Math, S, kTail>(tile.values[key + i], column + j * kWidth, tile.head_dim);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum[r][j] = {fma(weight[r], v.first, sum[r][j].first), fma(weight[r], v.second, sum[r][j].second)};
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < kPieces; ++j) store_two_as(S{}, acc + r * tile.acc_stride + j * kWidth, sum[r][j]);
  }
}

template <class S, int kRows>
FOVEA_INLINE void weigh_rows(const StreamValues& tile, int row, int key, int count) {
  constexpr int kWidth = F32Math::kStreamWidth, kPieces = kStreamSums / 2 / kRows;
  int column = 0;
  for (; column + kPieces * kWidth <= tile.head_dim; column += kPieces * kWidth)
    weigh_columns<S, kRows, kPieces, false>(tile, row, column, key, count);
  if constexpr (kPieces > 1) {
    for (; column + kWidth <= tile.head_dim; column += kWidth) weigh_columns<S, kRows, 1, false>(tile, row, column, key, count);
  }
  if (column < tile.head_dim) weigh_columns<S, kRows, 1, true>(tile, row, column, key, count);
}

/// acc_stride is a multiple of the piece, so the last piece of a row has room.
template <class S>
static void stream_values(const StreamValues& tile) {
  constexpr int kKeys = 32;                                        // at a time, so that the prefetches are spread over the tile
  for (int key = 0; key < tile.count || key == 0; key += kKeys) {  // once even without keys: to rescale
    const int count = tile.count - key < kKeys ? tile.count - key : kKeys;
    if (tile.next != nullptr && key < tile.next_count) {
      prefetch_rows(tile.next + key, tile.next_count - key < kKeys ? tile.next_count - key : kKeys, tile.next_bytes);
    }
    int row = 0;
    for (; row + 4 <= tile.rows; row += 4) weigh_rows<S, 4>(tile, row, key, count);
    for (; row + 2 <= tile.rows; row += 2) weigh_rows<S, 2>(tile, row, key, count);
    for (; row < tile.rows; ++row) weigh_rows<S, 1>(tile, row, key, count);
  }
}

}  // namespace fovea::cpu::FOVEA_ISA
