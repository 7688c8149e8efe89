// SPDX-License-Identifier: Apache-2.0
/// Tiles of latent attention, and the kinds of rows that its kernels take.
#pragma once

#include <cstdint>

namespace fovea::gpu::sm90::latent {

inline constexpr int kQueryTile = 64;       // query rows (heads x query tokens) of a query tile
inline constexpr int kKeyTile = 64;         // keys of a key tile
inline constexpr int kPair = 2 * kKeyTile;  // keys of an even and an odd tile: the unit of the schedule
inline constexpr int kSlice = 64;           // columns of a slice: 128 bytes
inline constexpr int kValueDim = 512;
inline constexpr int kHalfSlices = kValueDim / kSlice / 2;  // V columns of one accumulator
inline constexpr int kGroups = kKeyTile / 8;                // of eight rows
inline constexpr int kKeySlices = 9;                        // the ninth has columns 512 to 575, then P (of even tiles; specialised: of all)
inline constexpr int kKeyGroup = kKeySlices * 1024;         // bytes from one group of eight keys to the next
inline constexpr int kStagingBytes = 5 * kGroups * 1024;    // codes of a tile and the rotary part: [group][piece][8 rows][128]
inline constexpr int kBoxRows = 8;                          // keys of one copy: pages are multiples of it

inline constexpr int kKeyLimit = 1 << 30;  // a sequence has fewer keys: they are counted in ints

inline constexpr std::int64_t kBoxStrideLimit = std::int64_t{1} << 40;  // bytes, of tensor copies

inline constexpr int kMaxCtas = 144;  // as many multiprocessors as any Hopper has

inline constexpr int kMathThreads = 256;  // two warpgroups
inline constexpr int kMathWarps = kMathThreads / 32;

/// A partial result is the accumulators in the order of registers: [piece] of eight floats a thread, of 24 bits each (partial.cuh).
inline constexpr int kPieceFloats = 8, kPieceWords = 3;  // words of eight bytes
inline constexpr int kPartialPieces = kQueryTile * kValueDim / kPieceFloats / kMathThreads;
inline constexpr int kPartialRowStats = 4;            // numbers of each row
inline constexpr int kMathWarpRows = kQueryTile / 4;  // of a math warp, which holds the columns of its warpgroup of them

/// A key tile is two halves: columns [0, 256), then the rest. Each half of the even tile (buffer 0) and of the odd one is loaded and
/// released on its own.
inline constexpr int kHalves = 4;  // buffer * 2 + half

/// How keys are loaded.
enum class Load {
  tma,        // TMA boxes of eight keys: dense attention over pages of a multiple of eight
  gather,     // row by row, as they are stored: any page, or the tokens that a query lists
  quantised,  // row by row, decoded from 8 or 4 bits
};

/// How a cache stores a token. Kernels also have `any`, a kind known at run time, and v41 with an extra cache of fp4.
enum class Row : int { plain, e4m3, v32, v4, v41, fp4, any, v41_and_fp4 };

/// With lists of tokens: the first key of the extra cache, after `main_len` keys of the main one. Keys between them are absent.
constexpr int extra_list_begin(int main_len) { return (main_len + kKeyTile - 1) / kKeyTile * kKeyTile; }

}  // namespace fovea::gpu::sm90::latent
