// SPDX-License-Identifier: Apache-2.0
/// Readers of the lists of a block mask by key tiles: the walk of a CTA, and whether a query sees a key.
#pragma once

#include "gpu/cuda/common/gradient/lists.hpp"
#include "gpu/cuda/common/gradient/sequence.cuh"

namespace fovea::gpu::gradient {

/// The query tiles of a key tile, head after head of its kv head. A step is read one ahead.
class ListedTileScheduler {
 public:
  __device__ ListedTileScheduler(const GradientLists& lists_, int batch_, int first_head, int heads, int key_tile_)
      : lists(lists_), batch(batch_), key_tile(key_tile_), last(first_head + heads - 1), head(first_head) {
    begin();
  }

  /// Steps of all heads.
  static __device__ int count(const GradientLists& lists, int batch, int first_head, int heads, int key_tile) {
    int sum = 0;
    for (int head = first_head; head < first_head + heads; ++head)
      sum += lists.step_counts[lists.list(batch, head) * lists.key_tiles + key_tile];
    return sum;
  }

  struct HeadStep {
    int head;
    ListedStep step;
  };
  __device__ HeadStep next() {
    const HeadStep now{head, unpacked(ahead)};
    if (--left > 0) {
      ahead = *++at;
    } else if (head < last) {
      ++head;
      begin();
    }
    return now;
  }

 private:
  static __device__ ListedStep unpacked(uint2 step) {
    return {.query_tile = static_cast<std::uint16_t>(step.x),
            .place = static_cast<std::uint16_t>(step.x >> 16),
            .slots = {static_cast<std::uint16_t>(step.y), static_cast<std::uint16_t>(step.y >> 16)}};
  }
  /// At the first step of the head, or of the next one that has steps.
  __device__ void begin() {
    for (;; ++head) {
      left = lists.step_counts[lists.list(batch, head) * lists.key_tiles + key_tile];
      if (left > 0 || head == last) break;
    }
    at = reinterpret_cast<const uint2*>(lists.steps_of(batch, head, key_tile));
    if (left > 0) ahead = *at;
  }

  const GradientLists& lists;
  const int batch, key_tile, last;
  int head, left = 0;
  const uint2* at = nullptr;
  uint2 ahead{};
};

/// Steps of a key tile of a kv head.
template <class Params>
__device__ inline int steps_of_key_tile(const Params& params, int batch, int kv_head, int key_tile) {
  return ListedTileScheduler::count(params.lists, batch, kv_head * params.heads_per_kv, params.heads_per_kv, key_tile);
}

/// The key tile of a CTA. Under a block mask, the key tiles of a head have the order of the lists.
template <class Params>
__device__ inline KeyTile tile_at_ticket(const Params& params, int rows, int ticket) {
  KeyTile tile = key_tile_at(params, rows, ticket);
  if constexpr (Params::kLists) {
    if (tile.none) return tile;
    const GradientLists& lists = params.lists;
    tile.index = lists.order[(std::int64_t{tile.sequence.batch} * params.kv_heads + tile.kv_head) * lists.key_tiles + tile.index];
    tile.begin = tile.index * rows;
  }
  return tile;
}

/// Whether the lists show a key to a query, whatever the band says.
__device__ inline bool lists_show(const GradientLists& lists, int batch, int head, int token, int key) {
  const std::int64_t row = lists.list(batch, head) * lists.q_blocks + token / lists.of.block_q;
  const int slot = lists.slots[row * lists.of.key_blocks + key / lists.of.block_k];
  if (slot == kFullBlock || slot == kNotListed) return slot == kFullBlock;
  return (*lists.bits(batch, head, token, key, slot) >> key % 32 & 1) != 0;
}

/// Whether no key tile is listed for a query.
__device__ inline bool lists_are_empty(const GradientLists& lists, int batch, int head, int token) {
  const std::int64_t row = lists.list(batch, head) * lists.q_blocks + token / lists.of.block_q;
  return lists.before[row * (lists.words + 1) + lists.words] == 0;
}

}  // namespace fovea::gpu::gradient
