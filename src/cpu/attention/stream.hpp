// SPDX-License-Identifier: Apache-2.0
/// Decode: few query rows, so each K and V element is used a few times, and packing it would cost more than multiplying it. Rows are read
/// where they lie, in blocks of a few tokens and all heads of the call. Each step prefetches as much of the next block as it reads of its
/// own. Prefetches in bursts would leave pauses in which the memory is idle.
#pragma once

#include "cpu/attention/arithmetic.hpp"
#include "cpu/kernels.hpp"

namespace fovea::cpu::FOVEA_ISA {

inline constexpr int kStreamKeys = 8;  // tokens of one block

/// Rows of one head to prefetch: the block after the one at `key`. If there is no other whole block, or nothing is to be prefetched, these
/// are the rows of the current block, which are read anyway.
struct Coming {
  const Row* rows;      // [count]
  std::int64_t offset;  // bytes from a token's rows to the row of the head
  int count;

  Coming(const StreamRows& own, const StreamRows& next, int key, int head, bool fetched) {
    const int after = key + kStreamKeys;
    const bool inside = fetched && after + kStreamKeys <= own.count, beyond = fetched && after >= own.count && next.count >= kStreamKeys;
    const StreamRows& from = beyond ? next : own;
    const int first = inside ? after : beyond ? 0 : key;
    rows = from.rows + first;
    offset = head * from.head_stride;
    count = from.count - first < kStreamKeys ? from.count - first : kStreamKeys;
  }

  FOVEA_INLINE const char* at(const Coming& coming, int i) { return static_cast<const char*>(coming.rows[i]) + coming.offset; }
};

/// Loads a piece of a row, from element d on. With kTail, loads only what is left of the row.
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

template <class S>
static void arrange_q(void* operands, int padded) {
  auto* q = static_cast<float*>(operands);
  for (int d = 0; d < padded; d += F32Math::kStreamWidth) store_two_as(F32{}, q + d, load_two_as(S{}, q + d));
}

/// A few queries of a head against a few keys.
template <class Math, int kRows, int kKeys>
struct ScorePiece {
  const typename Math::Operand* q[kRows];
  Row keys[kKeys];
  const char* coming[kKeys];
  int head_dim;
};

/// Multiplies one piece of kRows queries with the same piece of kKeys keys. Each element is unpacked once for all of them. The operand with
/// fewer rows stays in registers.
template <class Math, class S, int kRows, int kKeys, bool kTail>
FOVEA_INLINE void score_step(const ScorePiece<Math, kRows, kKeys>& piece, int d, Vec (&sum)[kRows][kKeys]) {
  typename Math::StreamReg few[kRows <= kKeys ? kRows : kKeys];
  const auto load_q = [&](int r) { return Math::load_stream_q(piece.q[r] + d); };
  const auto load_k = [&](int i) { return load_stream_at<Math, S, kTail>(piece.keys[i], d, piece.head_dim); };
  constexpr int kBytes = sizeof(typename S::Code);
#pragma GCC unroll 4
  for (int i = 0; i < kKeys; ++i) fetch(piece.coming[i], d * kBytes, Math::kStreamWidth * kBytes);
  if constexpr (kRows <= kKeys) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) few[r] = load_q(r);
#pragma GCC unroll 4
    for (int i = 0; i < kKeys; ++i) {
      const typename Math::StreamReg k = load_k(i);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum[r][i] = Math::stream_multiply_add(few[r], k, sum[r][i]);
    }
  } else {
#pragma GCC unroll 4
    for (int i = 0; i < kKeys; ++i) few[i] = load_k(i);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const typename Math::StreamReg q = load_q(r);
#pragma GCC unroll 4
      for (int i = 0; i < kKeys; ++i) sum[r][i] = Math::stream_multiply_add(q, few[i], sum[r][i]);
    }
  }
}

/// Scores of kRows queries of a head against the block of keys from `block` on, as many keys at once as registers allow. Past the last key
/// it repeats the last one, and the mask hides the result. Arguments that differ from call to call are in registers. Compilers copy a
/// freshly filled structure by loads wider than its stores, and such a load waits until the stores have completed.
template <class Math, class S, int kRows>
__attribute__((noinline)) static void score_rows(const StreamScores& tile, int block, int head, int row) {
  constexpr int kKeys = kStreamSums / kRows >= 4 ? 4 : 2;
  const std::int64_t first = static_cast<std::int64_t>(head) * tile.rows + row, offset = head * tile.keys.head_stride;
  const std::int64_t score_stride = tile.score_stride;
  const int last = tile.keys.count - 1, end = last < block + kStreamKeys ? last + 1 : block + kStreamKeys;
  const Row* const rows = tile.keys.rows;
  float* const scores = tile.scores + first * score_stride;
  const Coming coming(tile.keys, tile.next, block, head, row == 0);
  ScorePiece<Math, kRows, kKeys> piece;
  piece.head_dim = tile.head_dim;
  for (int r = 0; r < kRows; ++r) piece.q[r] = static_cast<const typename Math::Operand*>(tile.q) + (first + r) * tile.q_stride;
  for (int key = block; key < end; key += kKeys) {
    Vec sum[kRows][kKeys];
#pragma GCC unroll 4
    for (int i = 0; i < kKeys; ++i) {
      piece.keys[i] = static_cast<const char*>(rows[key + i < last ? key + i : last]) + offset;
      piece.coming[i] = Coming::at(coming, key - block + i < coming.count ? key - block + i : coming.count - 1);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum[r][i] = zero();
    }
    int d = 0;
    for (; d + Math::kStreamWidth <= piece.head_dim; d += Math::kStreamWidth) score_step<Math, S, kRows, kKeys, false>(piece, d, sum);
    if (d < piece.head_dim) score_step<Math, S, kRows, kKeys, true>(piece, d, sum);
    store_sums(scores + key, score_stride, sum);
  }
}

/// Calls use() for pieces of four rows, then for the rest.
template <class Use>
FOVEA_INLINE void each_piece(int rows, const Use& use) {
  int row = 0;
  for (; row + 4 <= rows; row += 4) use.template operator()<4>(row);
  if (rows - row == 3) use.template operator()<3>(row);
  if (rows - row == 2) use.template operator()<2>(row);
  if (rows - row == 1) use.template operator()<1>(row);
}

template <class Math, class S>
static void stream_scores(const StreamScores& tile) {
  for (int block = 0; block < tile.keys.count; block += kStreamKeys) {
    for (int head = 0; head < tile.heads; ++head)
      each_piece(tile.rows, [&]<int kRows>(int row) { score_rows<Math, S, kRows>(tile, block, head, row); });
  }
}

/// A few keys of one head.
struct ValuePiece {
  const float* p;
  std::int64_t p_stride;
  const Row* values;
  std::int64_t offset;  // bytes from a token's rows to the row of the head
  int count;
  Coming coming;
  float* acc;
  std::int64_t acc_stride;
  const float* rescale;  // null for 1
  bool begins, ends;     // otherwise the accumulator keeps the order of the storage
  int head_dim;
};

/// Accumulates kRows rows and kPieces pieces of columns.
template <class S, int kRows, int kPieces, bool kTail>
FOVEA_INLINE void weigh_columns(const ValuePiece& piece, int column) {
  constexpr int kWidth = F32Math::kStreamWidth;
  float* acc = piece.acc + column;
  Two sum[kRows][kPieces];
  if (piece.begins) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec rescale = piece.rescale != nullptr ? broadcast(piece.rescale + r) : splat(1.0f);
#pragma GCC unroll 8
      for (int j = 0; j < kPieces; ++j) {
        const Two old = load_two_as(S{}, acc + r * piece.acc_stride + j * kWidth);
        sum[r][j] = {mul(old.first, rescale), mul(old.second, rescale)};
      }
    }
  } else {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int j = 0; j < kPieces; ++j) sum[r][j] = load_two_as(F32{}, acc + r * piece.acc_stride + j * kWidth);
    }
  }
  const float* p = piece.p;
  constexpr int kBytes = sizeof(typename S::Code);
  const std::int64_t offset = piece.offset + column * kBytes;
#pragma GCC unroll 4
  for (int i = 0; i < piece.count; ++i) {
    const void* value = static_cast<const char*>(piece.values[i]) + offset;
    fetch(Coming::at(piece.coming, i), column * kBytes, kPieces * kWidth * kBytes);
    Vec weight[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) weight[r] = broadcast(p + r * piece.p_stride + i);
#pragma GCC unroll 8
    for (int j = 0; j < kPieces; ++j) {
      const Two v = load_stream_at<F32Math, S, kTail>(value, j * kWidth, piece.head_dim - column);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum[r][j] = {fma(weight[r], v.first, sum[r][j].first), fma(weight[r], v.second, sum[r][j].second)};
    }
  }
  if (piece.ends) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int j = 0; j < kPieces; ++j) store_two_as(S{}, acc + r * piece.acc_stride + j * kWidth, sum[r][j]);
    }
  } else {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int j = 0; j < kPieces; ++j) store_two_as(F32{}, acc + r * piece.acc_stride + j * kWidth, sum[r][j]);
    }
  }
}

/// Columns from `column` on, kPieces registers at a time. acc_stride is a multiple of the width, so the last piece of a row has room.
template <class S, int kRows, int kPieces>
FOVEA_INLINE void weigh_span(const ValuePiece& piece, int column) {
  constexpr int kWidth = F32Math::kStreamWidth;
  for (; column + kPieces * kWidth <= piece.head_dim; column += kPieces * kWidth) weigh_columns<S, kRows, kPieces, false>(piece, column);
  if constexpr (kPieces > 1) {
    weigh_span<S, kRows, kPieces / 2>(piece, column);
  } else if (column < piece.head_dim) {
    weigh_columns<S, kRows, 1, true>(piece, column);
  }
}

/// kRows queries of a head and the block of keys from `block` on.
template <class S, int kRows>
__attribute__((noinline)) static void weigh_rows(const StreamValues& tile, int block, int head, int row) {
  constexpr int kRoom = kStreamSums / 2 / kRows, kPieces = kRoom > 2 ? 2 : kRoom;  // with 4, prefetches of a row come in bursts
  const std::int64_t first = static_cast<std::int64_t>(head) * tile.head_rows + row;
  const int left = tile.values.count - block;
  const ValuePiece piece{.p = tile.p + first * tile.p_stride + block,
                         .p_stride = tile.p_stride,
                         .values = tile.values.rows + block,
                         .offset = head * tile.values.head_stride,
                         .count = left < kStreamKeys ? left : kStreamKeys,
                         .coming = Coming(tile.values, tile.next, block, head, row == 0),
                         .acc = tile.acc + first * tile.acc_stride,
                         .acc_stride = tile.acc_stride,
                         .rescale = tile.rescale != nullptr ? tile.rescale + first : nullptr,
                         .begins = block == 0,
                         .ends = left <= kStreamKeys,
                         .head_dim = tile.head_dim};
  weigh_span<S, kRows, kPieces>(piece, 0);
}

template <class S>
static void stream_values(const StreamValues& tile) {
  for (int block = 0; block < tile.values.count || block == 0; block += kStreamKeys) {  // once even without keys, to rescale
    for (int head = 0; head < tile.heads; ++head)
      each_piece(tile.rows, [&]<int kRows>(int row) { weigh_rows<S, kRows>(tile, block, head, row); });
  }
}

}  // namespace fovea::cpu::FOVEA_ISA
