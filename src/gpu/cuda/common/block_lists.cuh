// SPDX-License-Identifier: Apache-2.0
/// The key tiles that a block mask's lists name for a work tile, and the bits of partial ones.
#pragma once

#include <cstdint>

#include "gpu/cuda/common/block_lists.hpp"
#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/common/work_tile.cuh"

namespace fovea::gpu {

struct ListedTile {
  int tile = 0;
  const std::int32_t* bits = nullptr;  ///< those of the query tile's first row; null: the lists hide nothing here
};

/// Key tiles of a work tile, whose rows are of one query block: full blocks first, each list in its order.
struct ListedTiles {
  const BlockLists* lists = nullptr;
  int full = 0, count = 0;  ///< key tiles: of full blocks, of all
  const std::int32_t *full_indices = nullptr, *partial_indices = nullptr, *bits = nullptr;
  int block_words = 0;  ///< of a partial block

  ListedTiles() = default;
  /// A work tile whose band is empty has no listed tiles.
  __device__ ListedTiles(const BlockLists& of, const WorkTile& work) : lists(&of) {
    if (work.low > work.high || work.done) return;
    const int q_block = work.token / lists->block_q;
    const auto place = [&](const BlockStrides& strides) {
      return work.batch * strides.batch + work.head * strides.head + q_block * strides.q_block;
    };
    const auto count_of = [&](const BlockList& list) {
      return list.counts == nullptr ? 0 : min(max(list.counts[place(list.of_counts)], 0), list.slots);
    };
    full = count_of(lists->full) * lists->tiles_of_block;
    count = full + count_of(lists->partial) * lists->tiles_of_block;
    full_indices = lists->full.indices + place(lists->full.of_indices);
    partial_indices = lists->partial.indices + place(lists->partial.of_indices);
    const int row_words = lists->block_k / 32;
    block_words = lists->block_q * row_words;
    bits = lists->bits + place(lists->of_bits) + (work.token - q_block * lists->block_q) * row_words;
  }

  __device__ ListedTile at(int position) const {
    const bool is_full = position < full;
    const int inside = is_full ? position : position - full, slot = inside / lists->tiles_of_block;
    const int part = inside - slot * lists->tiles_of_block;
    const int number = (is_full ? full_indices : partial_indices)[slot];
    // A number of no block is past all keys, where the band hides everything.
    const int block = number >= 0 && number < lists->key_blocks ? number : lists->key_blocks;
    const int tile = block * lists->tiles_of_block + part, tile_words = lists->block_k / lists->tiles_of_block / 32;
    return {tile, is_full ? nullptr : bits + std::int64_t{slot} * block_words + part * tile_words};
  }
};

/// Reads the lists of a work tile from their ends, a key tile ahead.
class ListCursor {
 public:
  __device__ void begin(const BlockLists& lists, const WorkTile& work) {
    tiles = ListedTiles(lists, work);
    ahead = tiles.count > 0 ? tiles.at(tiles.count - 1) : ListedTile{};
  }
  __device__ ListedTile next(int position) {
    const ListedTile current = ahead;
    if (position > 0) ahead = tiles.at(position - 1);
    return current;
  }

 private:
  ListedTiles tiles;
  ListedTile ahead;
};

/// In shared memory: the listed tile in each stage of keys.
template <int kStages>
struct ListedStages {
  ListedTile tiles[kStages];
};

/// Bits of a lane's two rows of a key tile.
template <int kKeyTile>
struct TileBits {
  static constexpr int kWords = kKeyTile / 32;
  std::uint32_t words[2][kWords];

  /// `tile`: of a listed tile; rows count from the query tile's first token.
  __device__ __forceinline__ void load(const BlockLists& lists, const std::int32_t* tile, int row, int other) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::int32_t* from = tile + (r == 0 ? row : other) * (lists.block_k / 32);
#pragma unroll
      for (int w = 0; w < kWords; ++w) words[r][w] = static_cast<std::uint32_t>(__ldg(from + w));
    }
  }
  /// Hides the lane's scores whose bits are 0.
  template <class Score, int kCount>
  __device__ __forceinline__ void hide(Score (&scores)[kCount], int lane) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const std::uint32_t word = words[row_of(i)][column_of(i) / 32] >> lane_column(lane);
      if ((word >> column_of(i) % 32 & 1) == 0) scores[i] = kHidden<Score>;
    }
  }
};

/// Visits the keys that a row of a work tile sees, by the lists, their bits and the band, one after another.
template <int kKeyTile>
class VisibleKeys {
 public:
  __device__ VisibleKeys(const BlockLists& lists_, const WorkTile& work, int token)
      : lists(lists_), tiles(lists_, work), band(work.keys_of(token)), row(token - work.token), end(work.last), position(work.first - 1) {}

  /// The next one, or -1.
  __device__ int next() {
    for (;;) {
      if (++key == kKeyTile) {
        if (++position >= min(end, tiles.count)) return -1;
        tile = tiles.at(position);
        key = 0;
      }
      const int number = tile.tile * kKeyTile + key;
      if (number >= band.begin && number < band.end && is_set()) return number;
    }
  }
  /// How many are left.
  __device__ int count() {
    int keys = 0;
    while (next() >= 0) ++keys;
    return keys;
  }

 private:
  __device__ bool is_set() const { return tile.bits == nullptr || (tile.bits[row * (lists.block_k / 32) + key / 32] >> key % 32 & 1) != 0; }

  const BlockLists& lists;
  const ListedTiles tiles;
  const WorkTile::Keys band;
  const int row, end;
  int position, key = kKeyTile - 1;
  ListedTile tile;
};

/// A listed tile in registers, with the bits of a partial one.
template <int kKeyTile>
struct ListedBits {
  ListedTile tile;
  TileBits<kKeyTile> bits;
};

}  // namespace fovea::gpu
