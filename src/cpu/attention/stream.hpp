// SPDX-License-Identifier: Apache-2.0
/// Decode: few query rows, so each K and V element is used a few times only and packing it would cost more than multiplying it. Rows are read
/// where they lie; each phase prefetches what the next one reads.
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

template <class Math, class S>
FOVEA_INLINE typename Math::Reg load_row_at(const void* row, int d, int head_dim) {
  const auto* codes = static_cast<const typename S::Code*>(row) + d;
  if (d + Math::kStreamWidth <= head_dim) return Math::load_row(S{}, codes);
  typename S::Code some[Math::kStreamWidth] = {};
  __builtin_memcpy(some, codes, static_cast<unsigned long>(head_dim - d) * sizeof(typename S::Code));
  return Math::load_row(S{}, some);
}

/// kRows queries against four keys: one pass over the rows, one transposing sum for each query.
template <class Math, class S, int kRows>
FOVEA_INLINE void score_four(const StreamScores& tile, int row, int key) {
  const auto* q = static_cast<const typename Math::Operand*>(tile.q) + row * tile.q_stride;
  Vec sum[kRows][4];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = zero();
  for (int d = 0; d < tile.head_dim; d += Math::kStreamWidth) {
    typename Math::Reg k[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) k[i] = load_row_at<Math, S>(tile.keys[key + i], d, tile.head_dim);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const typename Math::Reg left = Math::load_operands(q + r * tile.q_stride + d);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) sum[r][i] = Math::multiply_add(left, k[i], sum[r][i]);
    }
  }
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

/// kRows x kVectors accumulators over `count` keys.
template <class S, int kRows, int kVectors>
FOVEA_INLINE void weigh_columns(const StreamValues& tile, int row, int column, int key, int count) {
  Vec sum[kRows][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) sum[r][j] = load(F32{}, tile.acc + (row + r) * tile.acc_stride + column + j * kLanes);
  }
  const float* p = tile.p + row * tile.p_stride + key;
  for (int i = 0; i < count; ++i, ++p) {
    Vec v[kVectors];
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) v[j] = load_row_at<F32Math, S>(tile.values[key + i], column + j * kLanes, tile.head_dim);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec weight = broadcast(p + r * tile.p_stride);
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j) sum[r][j] = fma(weight, v[j], sum[r][j]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) store(F32{}, tile.acc + (row + r) * tile.acc_stride + column + j * kLanes, sum[r][j]);
  }
}

template <class S, int kRows>
FOVEA_INLINE void weigh_rows(const StreamValues& tile, int row, int key, int count) {
  constexpr int kVectors = kStreamColumns / kRows;
  int column = 0;
  for (; column + kVectors * kLanes <= tile.head_dim; column += kVectors * kLanes) weigh_columns<S, kRows, kVectors>(tile, row, column, key, count);
  for (; column < tile.head_dim; column += kLanes) weigh_columns<S, kRows, 1>(tile, row, column, key, count);
}

/// acc_stride is a multiple of the vector, so the last vector of a row has room.
template <class S>
static void stream_values(const StreamValues& tile) {
  if (tile.rescale != nullptr) {
    for (int row = 0; row < tile.rows; ++row) {
      const Vec rescale = splat(tile.rescale[row]);
      float* acc = tile.acc + row * tile.acc_stride;
      for (int d = 0; d < tile.head_dim; d += kLanes) store(F32{}, acc + d, mul(load(F32{}, acc + d), rescale));
    }
  }
  constexpr int kKeys = 16;  // at a time, so that the prefetches are spread over the tile
  for (int key = 0; key < tile.count; key += kKeys) {
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
