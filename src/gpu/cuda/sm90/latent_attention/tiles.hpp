// SPDX-License-Identifier: Apache-2.0
/// Tiles of latent attention, and the kinds of rows that its kernels take.
#pragma once

#include <cstdint>

namespace fovea::gpu::sm90::latent {

inline constexpr int kRowTile = 64;         // query rows (heads x query tokens) of a CTA
inline constexpr int kKeyTile = 64;         // keys of a tile
inline constexpr int kPair = 2 * kKeyTile;  // keys of an even and an odd tile: the unit of the schedule
inline constexpr int kSlice = 64;           // columns of a slice: 128 bytes
inline constexpr int kValueDim = 512;
inline constexpr int kHalfSlices = kValueDim / kSlice / 2;  // V columns of one accumulator
inline constexpr int kGroups = kKeyTile / 8;                // of eight rows
inline constexpr int kKeySlices = 9;  // the ninth: the rotary part of 576 columns, then P of the even tiles (of all, with four roles)
inline constexpr int kKeyGroup = kKeySlices * 1024;       // bytes from one group of eight keys to the next
inline constexpr int kStagingBytes = 5 * kGroups * 1024;  // codes of a tile and the rotary part: pieces of 128 bytes of a row
inline constexpr int kBoxRows = 8;                        // keys of one copy: pages are multiples of it

inline constexpr int kKeyLimit = 1 << 30;  // a request has fewer keys: they are counted in ints

inline constexpr std::int64_t kBoxStrideLimit = std::int64_t{1} << 40;  // bytes, of tensor copies

inline constexpr int kMaxParts = 144;  // as many SMs as any Hopper has

inline constexpr int kMathThreads = 256;  // two warpgroups
inline constexpr int kMathWarps = kMathThreads / 32;

/// A partial result is the accumulators as they lie in registers: pieces of eight floats a thread, of 24 bits each (partial.cuh).
inline constexpr int kPieceFloats = 8, kPieceWords = 3;  // words of eight bytes
inline constexpr int kPartialPieces = kRowTile * kValueDim / kPieceFloats / kMathThreads;
inline constexpr int kPartialRowStats = 4;          // numbers of each row
inline constexpr int kMathWarpRows = kRowTile / 4;  // of a math warp, which has the columns of its warpgroup of them

/// A K tile is two halves: columns [0, 256), then the rest. Halves of the even tiles (buffer 0) and the odd ones come and go separately.
inline constexpr int kHalves = 4;  // buffer * 2 + half

/// How keys come into shared memory.
enum class Load {
  boxes,  // eight at once, by the copy engine: dense attention over pages of a multiple of eight
  rows,   // one by one, as they are: any page, or the tokens that a query lists
  codes,  // one by one, decoded from 8 or 4 bits where the cache holds such
};

/// What one token of a cache looks like. Of a kernel also: whatever its caches turn out to hold, and v41 with an extra cache of fp4.
enum class Row : int { plain, e4m3, v32, v4, v41, fp4, any, v41_and_fp4 };

/// Lists: the key from which on the extra cache's is read, after a main one of so many. Before it, a tile may have holes.
constexpr int extra_list_begin(int main_len) { return (main_len + kKeyTile - 1) / kKeyTile * kKeyTile; }

}  // namespace fovea::gpu::sm90::latent
