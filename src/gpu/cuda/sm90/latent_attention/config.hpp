// SPDX-License-Identifier: Apache-2.0
/// Constants of the latent kernel that follow from one another.
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

/// Codes of a CTA alone: one warpgroup scores, two decode and multiply values, the warps of one load. Of packed rows.
constexpr bool has_four_roles(Load load, Row row) {
  return load == Load::codes && (row == Row::v32 || row == Row::v4 || row == Row::v41 || row == Row::v41_and_fp4);
}

/// kRow_: of all caches; only Load::codes looks at it.
/// kEdges_: rows of a tile may see different keys. It takes code that slows down calls in which they never do.
template <class Element_, int kHeadDim_, int kCluster_, Load kLoad_, Row kRow_ = Row::any, bool kEdges_ = false>
struct Config {
  using Element = Element_;
  static constexpr Load kLoad = kLoad_;
  static constexpr Row kRow = kRow_;
  static constexpr bool kEdges = kEdges_;
  static constexpr bool kTwoKinds = kRow == Row::v41_and_fp4;
  static constexpr bool kFourRoles = has_four_roles(kLoad, kRow);
  static constexpr bool kLists = kLoad != Load::boxes && kRow != Row::e4m3;  // whether queries may list their tokens
  static constexpr int kScoreThreads = kFourRoles ? 128 : 0;
  static constexpr int kLoadThreads = kLoad == Load::codes && kCluster_ == 1 && !kFourRoles ? 256 : 128;
  static constexpr int kThreads = kMathThreads + kScoreThreads + kLoadThreads;
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;     // of each thread at launch: the pool that the roles share
  static constexpr bool kWideProducts = kLaunchRegisters >= 158;        // which ptxas wants for one of 256 columns: 128 sums and some
  static constexpr int kScoreRegisters = kHeadDim_ == 576 ? 144 : 128;  // a slice of Q less
  static constexpr int kMathRegisters = kFourRoles ? 168 : kLoad == Load::codes ? 192 : 216;
  static constexpr int kLoadRegisters =
      (kLaunchRegisters * kThreads - kMathRegisters * kMathThreads - kScoreRegisters * kScoreThreads) / kLoadThreads / 8 * 8;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kCluster = kCluster_;  // CTAs that share each K tile; each loads its part of the keys for all
  static constexpr int kSlices = kHeadDim / kSlice;
  static constexpr bool kRopeBecomesP = kSlices == kKeySlices;              // else the ninth is P's alone
  static constexpr int kSharedSlices = kFourRoles ? kHalfSlices : kSlices;  // of Q; four roles have the others in registers
  static constexpr int kQueryGroup = kSharedSlices * 1024;
  static_assert(kHeadDim == 576 || kHeadDim == 512);
  static_assert(!kEdges || kLoad != Load::codes || kRow == Row::any);
  static_assert(kGroups % kCluster == 0);
  static_assert((kLoad != Load::rows && !kFourRoles) || kCluster == 1);
};

}  // namespace fovea::gpu::sm90::latent
