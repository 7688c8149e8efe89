// SPDX-License-Identifier: Apache-2.0
/// The matrix products of gemm.hpp on AMX tiles: 32 rows by 32 columns. Four tiles hold the accumulator, two hold rows and two hold
/// columns. A bf16 panel of 32 columns already has the layout of two tiles, each 16 pairs of the contracted dimension by 16 columns.
#pragma once

#include "cpu/attention/gemm.hpp"
#include "cpu/isa/tiles.hpp"

namespace fovea::cpu::FOVEA_ISA {

inline constexpr int kTileDepth = kTileRowBytes / 2;  // bf16 elements
static_assert(kPanel == 2 * kTileRows);

/// Called around each item, because other code in this thread may use tiles with another configuration.
static void enter_tiles() {
  static constexpr TileConfig kConfig{};
  tile_configure(kConfig);
}
static void leave_tiles() { tile_release(); }

/// Accumulators 0 and 1 (and with kBoth 2 and 3, of rows 16 to 31) += a * b.
template <bool kBoth>
FOVEA_INLINE void multiply_tiles(const std::uint16_t* a, std::int64_t a_stride, const std::uint16_t* b, std::int64_t k) {
  constexpr int kPairRow = 2 * kPanel;  // operands
  for (std::int64_t at = 0; at < k; at += kTileDepth, a += kTileDepth, b += kTileDepth * kPanel) {
    tile_load<6>(b, kPairRow * 2);
    tile_load<7>(b + kPairRow / 2, kPairRow * 2);
    tile_load<4>(a, a_stride * 2);
    tile_multiply_bf16<0, 4, 6>();
    tile_multiply_bf16<1, 4, 7>();
    if constexpr (kBoth) {
      tile_load<5>(a + kTileRows * a_stride, a_stride * 2);
      tile_multiply_bf16<2, 5, 6>();
      tile_multiply_bf16<3, 5, 7>();
    }
  }
}

template <bool kBoth>
FOVEA_INLINE void zero_tiles() {
  tile_zero<0>();
  tile_zero<1>();
  if constexpr (kBoth) {
    tile_zero<2>();
    tile_zero<3>();
  }
}

template <bool kBoth>
FOVEA_INLINE void load_tiles(const float* c, std::int64_t c_stride) {
  tile_load<0>(c, c_stride * 4);
  tile_load<1>(c + kTileRows, c_stride * 4);
  if constexpr (kBoth) {
    tile_load<2>(c + kTileRows * c_stride, c_stride * 4);
    tile_load<3>(c + kTileRows * c_stride + kTileRows, c_stride * 4);
  }
}

template <bool kBoth>
FOVEA_INLINE void store_tiles(float* c, std::int64_t c_stride) {
  tile_store<0>(c, c_stride * 4);
  tile_store<1>(c + kTileRows, c_stride * 4);
  if constexpr (kBoth) {
    tile_store<2>(c + kTileRows * c_stride, c_stride * 4);
    tile_store<3>(c + kTileRows * c_stride + kTileRows, c_stride * 4);
  }
}

template <bool kBoth>
FOVEA_INLINE void score_tiles(const ScoreTile& tile, const RowBlock& block, int key) {
  zero_tiles<kBoth>();
  multiply_tiles<kBoth>(static_cast<const std::uint16_t*>(tile.q) + block.row * tile.q_stride, tile.q_stride,
                        static_cast<const std::uint16_t*>(tile.keys) + static_cast<std::int64_t>(key) * tile.head_dim, tile.head_dim);
  store_tiles<kBoth>(tile.scores + block.row * tile.score_stride + key, tile.score_stride);
}

/// Computes rows in groups of sixteen. The scratch has room for the rows past the last one; nothing reads them.
static void tile_scores(const ScoreTile& tile) {
  for (int i = 0; i < tile.block_count; ++i) {
    const RowBlock& block = tile.blocks[i];
    for (int key = block.key_begin / kPanel * kPanel; key < block.key_end; key += kPanel) {
      block.rows > kTileRows ? score_tiles<true>(tile, block, key) : score_tiles<false>(tile, block, key);
    }
  }
}

/// `p`: weights of the block's first row and key.
template <bool kBoth>
FOVEA_INLINE void value_tiles(const ValueTile& tile, const RowBlock& block, const std::uint16_t* p, std::int64_t p_stride, int column) {
  float* acc = tile.acc + block.row * tile.acc_stride + column;
  load_tiles<kBoth>(acc, tile.acc_stride);
  multiply_tiles<kBoth>(p, p_stride,
                        static_cast<const std::uint16_t*>(tile.values) + static_cast<std::int64_t>(column) * tile.kv_tile +
                            static_cast<std::int64_t>(block.key_begin) * kPanel,
                        block.key_end - block.key_begin);
  store_tiles<kBoth>(acc, tile.acc_stride);
}

FOVEA_INLINE void rescale_rows(const ValueTile& tile, int first, int count) {
  for (int row = first; row < first + count; ++row) {
    if (tile.rescale[row] == 1.0f) continue;  // the usual case once the row maximum no longer grows
    const Vec rescale = splat(tile.rescale[row]);
    float* acc = tile.acc + row * tile.acc_stride;
    for (int d = 0; d < tile.head_dim; d += kLanes) store(F32{}, acc + d, mul(load(F32{}, acc + d), rescale));
  }
}

static void tile_values(const ValueTile& tile) {
  for (int i = 0; i < tile.block_count; ++i) {
    const RowBlock& block = tile.blocks[i];
    const std::uint16_t* p = static_cast<const std::uint16_t*>(tile.p) + block.row * tile.p_stride + block.key_begin;
    rescale_rows(tile, block.row, block.rows);
    for (int column = 0; column < tile.head_dim; column += kPanel) {
      block.rows > kTileRows ? value_tiles<true>(tile, block, p, tile.p_stride, column)
                             : value_tiles<false>(tile, block, p, tile.p_stride, column);
    }
  }
}

}  // namespace fovea::cpu::FOVEA_ISA
