// SPDX-License-Identifier: Apache-2.0
/// The functions of tiles.hpp on memory, so that sanitizers see what tiles load and store. Results have the processor's bits. Where the
/// processor would fault, a load or store does nothing and a product is NaN, or -1.
#pragma once

#include "cpu/isa/avx512.hpp"

namespace fovea::cpu::FOVEA_ISA {

struct alignas(64) EmulatedTile {
  std::uint8_t row[kTileRows][kTileRowBytes];
};

/// Without a configuration all tiles are empty.
struct EmulatedTiles {
  TileConfig config{.palette = 0, .row_bytes = {}, .rows = {}};
  EmulatedTile tile[kTiles] = {};
};
static thread_local EmulatedTiles emulated;

FOVEA_INLINE void tile_release() { emulated = EmulatedTiles{}; }
FOVEA_INLINE void tile_configure(const TileConfig& config) {
  tile_release();
  emulated.config = config;
}

template <int kTile>
FOVEA_INLINE void tile_zero() {
  emulated.tile[kTile] = EmulatedTile{};
}

template <int kTile>
FOVEA_INLINE void tile_load(const void* from, std::int64_t stride) {
  tile_zero<kTile>();
  for (int row = 0; row < emulated.config.rows[kTile]; ++row) {
    __builtin_memcpy(emulated.tile[kTile].row[row], static_cast<const std::uint8_t*>(from) + row * stride,
                     emulated.config.row_bytes[kTile]);
  }
}

template <int kTile>
FOVEA_INLINE void tile_store(void* to, std::int64_t stride) {
  for (int row = 0; row < emulated.config.rows[kTile]; ++row) {
    __builtin_memcpy(static_cast<std::uint8_t*>(to) + row * stride, emulated.tile[kTile].row[row], emulated.config.row_bytes[kTile]);
  }
}

/// Adds to a row of C the product of `depth` groups of four bytes of a row of A with as many rows of B.
using RowProduct = void (*)(void* c, const std::uint8_t* a, const EmulatedTile& b, int depth);

/// Even and odd elements have a sum each, of fused products. Both are added, and then to C.
static void multiply_row_bf16(void* c, const std::uint8_t* a, const EmulatedTile& b, int depth) {
  Two sum{zero(), zero()};
  for (int k = 0; k < depth; ++k) {
    std::uint32_t pair;
    __builtin_memcpy(&pair, a + 4 * k, sizeof pair);
    const Two right = load_two(BF16{}, b.row[k]);
    sum.first = fma(splat(__builtin_bit_cast(float, pair << 16)), right.first, sum.first);
    sum.second = fma(splat(__builtin_bit_cast(float, pair & 0xffff0000U)), right.second, sum.second);
  }
  store(F32{}, c, add(load(F32{}, c), add(sum.first, sum.second)));
}

[[maybe_unused]] static void multiply_row_int8(void* c, const std::uint8_t* a, const EmulatedTile& b, int depth) {
  for (int column = 0; column < kTileRowBytes; column += 4) {
    std::uint32_t sum;
    __builtin_memcpy(&sum, static_cast<std::uint8_t*>(c) + column, sizeof sum);
    for (int k = 0; k < depth; ++k) {
      for (int i = 0; i < 4; ++i) {
        sum += static_cast<std::uint32_t>(static_cast<std::int8_t>(a[4 * k + i]) * static_cast<std::int8_t>(b.row[k][column + i]));
      }
    }
    __builtin_memcpy(static_cast<std::uint8_t*>(c) + column, &sum, sizeof sum);
  }
}

/// Not inlined, so that no arithmetic leaves the mode in which it is called.
template <int kC, int kA, int kB>
[[gnu::noinline]] static void multiply_emulated(RowProduct multiply) {
  static_assert(kC != kA && kC != kB && kA != kB);
  const TileConfig& config = emulated.config;
  const int rows = config.rows[kC], row_bytes = config.row_bytes[kC], depth = config.row_bytes[kA] / 4;
  EmulatedTile& c = emulated.tile[kC];
  if (rows == 0 || config.rows[kA] != rows || config.rows[kB] != depth || config.row_bytes[kB] != row_bytes) {
    __builtin_memset(&c, 0xff, sizeof c);
    return;
  }
  for (int row = 0; row < rows; ++row) {
    multiply(c.row[row], emulated.tile[kA].row[row], emulated.tile[kB], depth);
    __builtin_memset(c.row[row] + row_bytes, 0, static_cast<unsigned long>(kTileRowBytes - row_bytes));
  }
}

/// Rounds to nearest even, and subnormal operands and results are zeros, whatever the thread's mode is.
template <int kC, int kA, int kB>
FOVEA_INLINE void tile_multiply_bf16() {
  constexpr unsigned kDefaultMode = 0x1f80, kFlushToZero = 0x8000, kDenormalsAreZeros = 0x0040;
  const unsigned before = _mm_getcsr();
  _mm_setcsr(kDefaultMode | kFlushToZero | kDenormalsAreZeros);
  multiply_emulated<kC, kA, kB>(multiply_row_bf16);
  _mm_setcsr(before);
}

template <int kC, int kA, int kB>
FOVEA_INLINE void tile_multiply_int8() {
  multiply_emulated<kC, kA, kB>(multiply_row_int8);
}

}  // namespace fovea::cpu::FOVEA_ISA
