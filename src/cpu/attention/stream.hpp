// SPDX-License-Identifier: Apache-2.0
/// Decode: few query rows, so each K and V element is used a few times only and packing it would cost more than multiplying it. Rows are
/// read where they lie, in blocks of a few tokens and all heads of the call, while the next block is on its way from memory.
#pragma once

#include "cpu/attention/arithmetic.hpp"
#include "cpu/kernels.hpp"

namespace fovea::cpu::FOVEA_ISA {

inline constexpr int kStreamKeys = 8;  // tokens of a block

/// Prefetches the block that comes next in the order of its addresses, whatever the order in which it will be used.
class Ahead {
 public:
  /// The block after the one at `key` of the call's own rows, or else the beginning of what follows them; all of it in `steps`.
  Ahead(const StreamRows& own, const StreamRows& next, int key, int heads, int steps) : heads_(heads) {
    const bool inside = key + kStreamKeys < own.count;
    from_ = inside ? own : next;
    if (inside) {
      from_.rows += key + kStreamKeys;
      from_.count -= key + kStreamKeys;
    }
    if (from_.count > kStreamKeys) from_.count = kStreamKeys;
    if (from_.count <= 0 || from_.bytes <= 0) return;
    if (from_.head_stride == from_.bytes && !from_.by_head) {  // the heads of a token are one run
      from_.bytes *= heads;
      heads_ = 1;
    }
    left_ = from_.count * heads_;
    pieces_ = (left_ * ((from_.bytes + kPiece - 1) / kPiece) + steps - 1) / steps;
    line_ = static_cast<const char*>(from_.rows[0]);
    bytes_ = from_.bytes;
  }

  /// One of the steps.
  FOVEA_INLINE void step(Ahead& ahead) {
    for (int i = 0; i < ahead.pieces_ && ahead.left_ > 0; ++i) {
      if (ahead.bytes_ > kPiece) {
        prefetch_piece(ahead.line_);
        ahead.line_ += kPiece;
        ahead.bytes_ -= kPiece;
      } else {
        ahead.end_run();
      }
    }
  }

 private:
  static constexpr int kPiece = 256;

  FOVEA_INLINE void prefetch_piece(const char* line) {
    prefetch(line);
    prefetch(line + 64);
    prefetch(line + 128);
    prefetch(line + 192);
  }

  void end_run() {
    for (; bytes_ > 0; bytes_ -= 64, line_ += 64) prefetch(line_);
    int &inner = from_.by_head ? key_ : head_, &outer = from_.by_head ? head_ : key_;
    if (++inner == (from_.by_head ? from_.count : heads_)) inner = 0, ++outer;
    if (--left_ == 0) return;
    line_ = static_cast<const char*>(from_.rows[key_]) + head_ * from_.head_stride;
    bytes_ = from_.bytes;
  }

  StreamRows from_{};
  const char* line_ = nullptr;
  int bytes_ = 0, left_ = 0, pieces_ = 0, heads_ = 1, key_ = 0, head_ = 0;
};

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

template <class S>
static void arrange_q(void* operands, int padded) {
  auto* q = static_cast<float*>(operands);
  for (int d = 0; d < padded; d += F32Math::kStreamWidth) store_two_as(F32{}, q + d, load_two_as(S{}, q + d));
}

/// Some queries of a head against a block of keys.
template <class Math>
struct ScorePiece {
  const typename Math::Operand* q = nullptr;
  std::int64_t q_stride = 0;
  Row keys[kStreamKeys] = {};
  int count = 0;
  float* scores = nullptr;
  std::int64_t score_stride = 0;
  int head_dim = 0;
};

/// kRows queries against kKeys keys, one piece of each: an element is unpacked once for all of them. The fewer of both wait in registers.
template <class Math, class S, int kRows, int kKeys, bool kTail>
FOVEA_INLINE void score_step(const ScorePiece<Math>& piece, int row, int key, int d, Vec (&sum)[kRows][kKeys]) {
  typename Math::StreamReg few[kRows <= kKeys ? kRows : kKeys];
  const auto load_q = [&](int r) { return Math::load_stream_q(piece.q + (row + r) * piece.q_stride + d); };
  const auto load_k = [&](int i) { return load_stream_at<Math, S, kTail>(piece.keys[key + i], d, piece.head_dim); };
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

/// kRows queries against the block, as many keys at once as there are registers for. The lanes are summed at the end, those of eight keys
/// together: between two products the multipliers would wait for them.
template <class Math, class S, int kRows>
__attribute__((noinline)) static void score_rows(const ScorePiece<Math>& whole, int row, Ahead& ahead) {
  constexpr int kKeys = kStreamSums / kRows >= 4 ? 4 : 2;
  const ScorePiece<Math> piece = whole;  // known to be no one else's
  alignas(64) float lanes[kRows][kStreamKeys][kLanes];
  for (int key = 0; key < piece.count; key += kKeys) {
    for (int i = 0; i < kKeys; i += 2) Ahead::step(ahead);
    Vec sum[kRows][kKeys];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < kKeys; ++i) sum[r][i] = zero();
    }
    int d = 0;
    for (; d + Math::kStreamWidth <= piece.head_dim; d += Math::kStreamWidth)
      score_step<Math, S, kRows, kKeys, false>(piece, row, key, d, sum);
    if (d < piece.head_dim) score_step<Math, S, kRows, kKeys, true>(piece, row, key, d, sum);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < kKeys; ++i) store(F32{}, lanes[r][key + i], sum[r][i]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int key = 0; key < piece.count; key += 8) store_eight_sums(piece.scores + (row + r) * piece.score_stride + key, lanes[r][key]);
  }
}

/// Pieces of four rows, and what is left.
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
  ScorePiece<Math> piece{.q_stride = tile.q_stride, .score_stride = tile.score_stride, .head_dim = tile.head_dim};
  for (int block = 0; block < tile.keys.count; block += kStreamKeys) {
    Ahead ahead(tile.keys, tile.next, block, tile.heads, tile.heads * (kStreamKeys / 2) * ((tile.rows + 3) / 4));
    const int last = tile.keys.count - block < kStreamKeys ? tile.keys.count - block - 1 : kStreamKeys - 1;
    piece.count = last + 1;
    for (int head = 0; head < tile.heads; ++head) {
      const std::int64_t first = static_cast<std::int64_t>(head) * tile.rows;
      for (int i = 0; i < kStreamKeys; ++i)  // the last one again where there are no more: what comes of it is hidden
        piece.keys[i] = static_cast<const char*>(tile.keys.rows[block + (i < last ? i : last)]) + head * tile.keys.head_stride;
      piece.q = static_cast<const typename Math::Operand*>(tile.q) + first * tile.q_stride;
      piece.scores = tile.scores + first * tile.score_stride + block;
      each_piece(tile.rows, [&]<int kRows>(int row) { score_rows<Math, S, kRows>(piece, row, ahead); });
    }
  }
}

/// Some keys of one head.
struct ValuePiece {
  const float* p = nullptr;
  std::int64_t p_stride = 0;
  const Row* values = nullptr;
  std::int64_t offset = 0;  // bytes from the rows to those of the head
  int count = 0;
  float* acc = nullptr;
  std::int64_t acc_stride = 0;
  const float* rescale = nullptr;   // or null for 1
  bool begins = true, ends = true;  // in between, the accumulator stays in the order of the storage
  int head_dim = 0;
};

/// kRows x kPieces accumulators.
template <class S, int kRows, int kPieces, bool kTail>
FOVEA_INLINE void weigh_columns(const ValuePiece& piece, int row, int column) {
  constexpr int kWidth = F32Math::kStreamWidth;
  float* acc = piece.acc + row * piece.acc_stride + column;
  Two sum[kRows][kPieces];
  if (piece.begins) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec rescale = piece.rescale != nullptr ? broadcast(piece.rescale + row + r) : splat(1.0f);
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
  const float* p = piece.p + row * piece.p_stride;
  const std::int64_t offset = piece.offset + column * static_cast<std::int64_t>(sizeof(typename S::Code));
#pragma GCC unroll 4
  for (int i = 0; i < piece.count; ++i) {
    const void* value = static_cast<const char*>(piece.values[i]) + offset;
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

/// acc_stride is a multiple of the piece, so the last piece of a row has room.
template <class S, int kRows>
__attribute__((noinline)) static void weigh_rows(const ValuePiece& whole, int row, Ahead& ahead) {
  constexpr int kWidth = F32Math::kStreamWidth, kPieces = kStreamSums / 2 / kRows;
  const ValuePiece piece = whole;  // known to be no one else's
  int column = 0;
  for (; column + kPieces * kWidth <= piece.head_dim; column += kPieces * kWidth) {
    for (int j = 0; j < kPieces; ++j) Ahead::step(ahead);
    weigh_columns<S, kRows, kPieces, false>(piece, row, column);
  }
  if constexpr (kPieces > 1) {
    for (; column + kWidth <= piece.head_dim; column += kWidth) {
      Ahead::step(ahead);
      weigh_columns<S, kRows, 1, false>(piece, row, column);
    }
  }
  if (column < piece.head_dim) {
    Ahead::step(ahead);
    weigh_columns<S, kRows, 1, true>(piece, row, column);
  }
}

template <class S>
static void stream_values(const StreamValues& tile) {
  const int steps = (tile.head_dim + F32Math::kStreamWidth - 1) / F32Math::kStreamWidth * tile.heads * ((tile.rows + 3) / 4);
  ValuePiece piece{.p_stride = tile.p_stride, .acc_stride = tile.acc_stride, .head_dim = tile.head_dim};
  for (int block = 0; block < tile.values.count || block == 0; block += kStreamKeys) {  // once even without keys: to rescale
    Ahead ahead(tile.values, tile.next, block, tile.heads, steps);
    piece.values = tile.values.rows + block;
    piece.count = tile.values.count - block < kStreamKeys ? tile.values.count - block : kStreamKeys;
    piece.begins = block == 0;
    piece.ends = block + kStreamKeys >= tile.values.count;
    for (int head = 0; head < tile.heads; ++head) {
      const std::int64_t first = static_cast<std::int64_t>(head) * tile.head_rows;
      piece.p = tile.p + first * tile.p_stride + block;
      piece.offset = head * tile.values.head_stride;
      piece.acc = tile.acc + first * tile.acc_stride;
      piece.rescale = tile.rescale != nullptr ? tile.rescale + first : nullptr;
      each_piece(tile.rows, [&]<int kRows>(int row) { weigh_rows<S, kRows>(piece, row, ahead); });
    }
  }
}

}  // namespace fovea::cpu::FOVEA_ISA
