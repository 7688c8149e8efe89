// SPDX-License-Identifier: Apache-2.0
/// The lists of a block mask as a backward pass reads them: by key tiles. `list_kernels.cuh` makes them.
#pragma once

#include <cstdint>

#include "gpu/cuda/common/block_lists.hpp"
#include "gpu/cuda/common/gradient/params.hpp"

namespace fovea::gpu::gradient {

/// A key tile has one or two units, each of one key block.
inline constexpr int kUnitKeys = 64;

/// How a query block lists a key block: as full, not at all, or by a slot of its partial blocks, plus one.
inline constexpr std::uint16_t kFullBlock = 0, kNotListed = 0xffff;

/// A query tile that lists a key tile.
struct alignas(8) ListedStep {
  std::uint16_t query_tile;
  std::uint16_t place;     // twice its rank among the key tiles that add to dq; plus one for the last of them
  std::uint16_t slots[2];  // of the units

  __device__ int rank() const { return place >> 1; }
  __device__ bool is_last() const { return (place & 1) != 0; }
};

inline constexpr std::int64_t kMostListedTiles = std::int64_t{1} << 15, kMostListedSlots = kNotListed - 1,
                              kMostListedSteps = std::int64_t{1} << 22;  // of a CTA

/// A key tile that a query block lists, and how it lists the key block around it.
struct ListedKeyTile {
  std::uint32_t word = 0;

  ListedKeyTile() = default;
  __device__ ListedKeyTile(int tile, std::uint16_t slot) : word(static_cast<std::uint32_t>(tile) | std::uint32_t{slot} << 16) {}
  __device__ int tile() const { return static_cast<int>(word & 0xffff); }
  __device__ int slot() const { return static_cast<int>(word >> 16); }
};

/// One list for each head and batch, or fewer where they share lists. Listed: named by a list, and within the band.
struct GradientLists {
  BlockLists of{};  // of the call
  int key_rows = 128, query_rows = kQueryTile;
  int q_blocks = 0, key_tiles = 0, query_tiles = 0;  // of a sequence
  int words = 0;                                     // bits of its key tiles
  int group = 128;                                   // GradientOrder
  int ctas = 0;                                      // that a device surely runs at a time; 0: key tiles need no order (list_order.cuh)
  int steps_of_batch = 0, steps_of_head = 0;         // from the steps of a batch item or a head to the next one's; 0 where shared
  int most_listed = 0;                               // key tiles of a query block, at most
  int of_batch = 0, of_head = 0;                     // from a list to the next one, of a batch or a head; 0 where shared
  int count = 1;
  // Workspace.
  std::uint32_t* listed = nullptr;  // [list][q_block][words]: bits of listed key tiles
  int* before = nullptr;            // [list][q_block][words + 1]: listed key tiles in the words before
  std::uint16_t* slots = nullptr;   // [list][q_block][key_block]
  std::uint16_t* places = nullptr;  // [list][q_block][key_tile]: the first step of the block among those of the key tile
  int* step_counts = nullptr;       // [list][key_tile]
  std::uint16_t* order = nullptr;   // [batch][kv_head][key_tile]: key tiles in the order of tickets
  std::int64_t* begins = nullptr;   // [batch][kv_head][key_tile]: when its CTA begins, in steps (TileSchedule)
  ListedStep* steps = nullptr;      // [list][key_tile][query_tiles], in the order of GradientOrder; of all heads where there is an order
  ListedKeyTile* tiles = nullptr;   // [list][q_block][most_listed]: by number, where there is no order

  __host__ __device__ std::int64_t list(int batch, int head) const { return std::int64_t{batch} * of_batch + std::int64_t{head} * of_head; }
  /// `row`: of a list and a query block.
  __device__ bool is_listed(std::int64_t row, int key_tile) const {
    return (listed[row * words + key_tile / 32] >> key_tile % 32 & 1) != 0;
  }
  /// How many listed key tiles of the row come before one.
  __device__ int listed_before(std::int64_t row, int key_tile) const {
    const std::uint32_t rest = key_tile % 32 != 0 ? listed[row * words + key_tile / 32] & ((1u << key_tile % 32) - 1) : 0;
    return before[row * (words + 1) + key_tile / 32] + __popc(rest);
  }
  __device__ int listed_count(std::int64_t row) const { return before[row * (words + 1) + words]; }
  /// The steps of a key tile, of one query head.
  __device__ ListedStep* steps_of(int batch, int head, int key_tile) const {
    return steps + ((std::int64_t{batch} * steps_of_batch + std::int64_t{head} * steps_of_head) * key_tiles + key_tile) * query_tiles;
  }
  /// The word with the bit of a pair, which lies in a partial block. The words of the next query are block_k / 32 further.
  __device__ const std::int32_t* bits(int batch, int head, int token, int key, int slot) const {
    const int q_block = token / of.block_q, row_words = of.block_k / 32;
    const std::int64_t block_words = std::int64_t{of.block_q} * row_words;
    return of.bits + batch * of.of_bits.batch + head * of.of_bits.head + q_block * of.of_bits.q_block + (slot - 1) * block_words +
           (token - q_block * of.block_q) * row_words + key % of.block_k / 32;
  }
};

}  // namespace fovea::gpu::gradient
