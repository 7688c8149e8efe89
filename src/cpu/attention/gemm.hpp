// SPDX-License-Identifier: Apache-2.0
/// Both matrix products of attention on packed panels: C[rows x panel] = A[rows x k] * B[k x panel]. A is row-major and broadcast. B
/// streams.
#pragma once

#include "cpu/attention/arithmetic.hpp"
#include "cpu/kernels.hpp"

namespace fovea::cpu::FOVEA_ISA {

inline constexpr int kPanel = kPanelVectors * kLanes;

/// Rows that are read side by side. Every fourth row has a pointer. Two registers, shared by all pointers, reach the rows behind them.
/// Without this, compilers keep one pointer and one multiple of the stride for each row, and spill some of them to vector registers.
template <class T, int kRows>
class SideBySide {
 public:
  SideBySide(const T* first, std::int64_t stride) : stride_(stride) {
#pragma GCC unroll 4
    for (int i = 0; i < kRuns; ++i) {
      run_[i] = first + i * kRun * stride;
      asm("" : "+r"(run_[i]));  // hides from the compiler how the pointers relate
    }
  }
  const T* row(int r) const { return run_[r / kRun] + r % kRun * stride_; }
  void advance(int columns) {
#pragma GCC unroll 4
    for (int i = 0; i < kRuns; ++i) run_[i] += columns;
  }

 private:
  static constexpr int kRun = 4, kRuns = (kRows + kRun - 1) / kRun;
  const T* run_[kRuns];
  std::int64_t stride_;
};

template <class Math>
struct MicroTile {
  const typename Math::Operand* a;
  std::int64_t a_stride;
  const typename Math::Operand* b;  // [k / kPair][kPanel][kPair], b_stride apart
  std::int64_t b_stride;
  std::int64_t k;
  float* c;
  std::int64_t c_stride;
  const float* rescale;  // c = c * rescale[row] + a * b, or c = a * b when null
};

template <class Math, int kRows>
static void micro_kernel(const MicroTile<Math>& tile) {
  Vec sum[kRows][kPanelVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < kPanelVectors; ++j) sum[r][j] = zero();
  }
  SideBySide<typename Math::Operand, kRows> a(tile.a, tile.a_stride);
  const auto* b = tile.b;
  for (std::int64_t k = 0; k < tile.k; k += Math::kPair) {
    typename Math::Reg right[kPanelVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kPanelVectors; ++j) right[j] = Math::load_operands(b + j * kLanes * Math::kPair);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const typename Math::Reg left = Math::repeat(a.row(r));
#pragma GCC unroll 4
      for (int j = 0; j < kPanelVectors; ++j) sum[r][j] = Math::multiply_add(left, right[j], sum[r][j]);
    }
    a.advance(Math::kPair);
    b += tile.b_stride;
  }
  float* c = tile.c;  // copies: for all that the compiler knows, the stores may alias `tile`
  const float* rescale = tile.rescale;
  const std::int64_t c_stride = tile.c_stride;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r, c += c_stride) {
#pragma GCC unroll 4
    for (int j = 0; j < kPanelVectors; ++j) {
      if (rescale != nullptr) sum[r][j] = fma(load(F32{}, c + j * kLanes), broadcast(rescale + r), sum[r][j]);
      store(F32{}, c + j * kLanes, sum[r][j]);
    }
  }
}

/// Row counts below kBlockRows are instances of their own: padding them would multiply absent rows.
template <class Math, int kRows = kBlockRows>
static void multiply(int rows, const MicroTile<Math>& tile) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return micro_kernel<Math, kRows>(tile);
    return multiply<Math, kRows - 1>(rows, tile);
  }
}

/// Calls compute(block, key) for each panel that a block needs. The panel stays in the first-level cache while the loop runs over the
/// blocks.
template <class Compute>
FOVEA_INLINE void each_panel(const ScoreTile& tile, const Compute& compute) {
  int first = tile.blocks[0].key_begin, last = tile.blocks[0].key_end;
  for (int i = 1; i < tile.block_count; ++i) {
    if (tile.blocks[i].key_begin < first) first = tile.blocks[i].key_begin;
    if (tile.blocks[i].key_end > last) last = tile.blocks[i].key_end;
  }
  for (int key = first / kPanel * kPanel; key < last; key += kPanel) {
    for (int i = 0; i < tile.block_count; ++i) {
      const RowBlock& block = tile.blocks[i];
      if (block.key_end > key && block.key_begin < key + kPanel) compute(block, key);
    }
  }
}

template <class Math>
static void scores(const ScoreTile& tile) {
  using Operand = typename Math::Operand;
  each_panel(tile, [&](const RowBlock& block, int key) {
    multiply<Math>(block.rows, {.a = static_cast<const Operand*>(tile.q) + block.row * tile.q_stride,
                                .a_stride = tile.q_stride,
                                .b = static_cast<const Operand*>(tile.keys) + static_cast<std::int64_t>(key) * tile.head_dim,
                                .b_stride = kPanel * Math::kPair,
                                .k = tile.head_dim,
                                .c = tile.scores + block.row * tile.score_stride + key,
                                .c_stride = tile.score_stride,
                                .rescale = nullptr});
  });
}

template <class Math>
static void values(const ValueTile& tile) {
  using Operand = typename Math::Operand;
  for (int column = 0; column < tile.head_dim; column += kPanel) {
    const Operand* panel = static_cast<const Operand*>(tile.values) + static_cast<std::int64_t>(column) * tile.kv_tile;
    for (int i = 0; i < tile.block_count; ++i) {
      const RowBlock& block = tile.blocks[i];
      if (block.key_begin >= block.key_end) continue;
      multiply<Math>(block.rows, {.a = static_cast<const Operand*>(tile.p) + block.row * tile.p_stride + block.key_begin,
                                  .a_stride = tile.p_stride,
                                  .b = panel + static_cast<std::int64_t>(block.key_begin) * kPanel,
                                  .b_stride = kPanel * Math::kPair,
                                  .k = block.key_end - block.key_begin,
                                  .c = tile.acc + block.row * tile.acc_stride + column,
                                  .c_stride = tile.acc_stride,
                                  .rescale = tile.rescale + block.row});
    }
  }
}

}  // namespace fovea::cpu::FOVEA_ISA
