// SPDX-License-Identifier: Apache-2.0
/// AMX: eight tile registers of 16 rows of 64 bytes. With FOVEA_EMULATE_AMX the same functions work on ordinary memory, on any machine.
#pragma once

#include "cpu/isa/storage.hpp"

namespace fovea::cpu::FOVEA_ISA {

inline constexpr int kTiles = 8, kTileRows = 16, kTileRowBytes = 64;

/// The layout that ldtilecfg reads. By default every tile has its full size.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

}  // namespace fovea::cpu::FOVEA_ISA

#ifdef FOVEA_EMULATE_AMX
#include "cpu/isa/tiles_emulated.hpp"
#else

namespace fovea::cpu::FOVEA_ISA {

// GCC 12's intrinsics do not take a template's number, and leave out that a load reads memory.
FOVEA_INLINE void tile_configure(const TileConfig& config) { asm volatile("ldtilecfg %0" : : "m"(config)); }
FOVEA_INLINE void tile_release() { asm volatile("tilerelease"); }

template <int kTile>
FOVEA_INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}

/// Loads and stores the rows of a tile, `stride` bytes apart.
template <int kTile>
FOVEA_INLINE void tile_load(const void* from, std::int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
FOVEA_INLINE void tile_store(void* to, std::int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
}

/// kC += kA * kB in f32. A row of A holds pairs of bf16, and row k of B holds pair k of each column.
template <int kC, int kA, int kB>
FOVEA_INLINE void tile_multiply_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
}
/// kC += kA * kB in s32, which wraps. Rows hold groups of four int8.
template <int kC, int kA, int kB>
FOVEA_INLINE void tile_multiply_int8() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
}

}  // namespace fovea::cpu::FOVEA_ISA

#endif
