// SPDX-License-Identifier: Apache-2.0
/// What reads the lists of a block mask by key tiles: the walk of a CTA, and whether a query sees a key.
#pragma once

#include "gpu/cuda/common/gradient/lists.hpp"

namespace fovea::gpu::gradient {

/// The query tiles of a key tile, head after head of its kv head.
class ListedTileScheduler {
 public:
  __device__ ListedTileScheduler(const GradientLists& lists_, int batch, int first_head, int heads, int key_tile_)
      : lists(lists_), list(lists_.list(batch, first_head)), key_tile(key_tile_), last(first_head + heads - 1), head_(first_head) {
    begin();
  }

  /// Steps of all heads.
  static __device__ int count(const GradientLists& lists, int batch, int first_head, int heads, int key_tile) {
    int sum = 0;
    for (int head = first_head; head < first_head + heads; ++head)
      sum += lists.step_counts[lists.list(batch, head) * lists.key_tiles + key_tile];
    return sum;
  }

  __device__ int head() const { return head_; }
  __device__ ListedStep step() const { return now; }
  __device__ void advance() {
    if (--left == 0) {
      if (head_ == last) return;
      ++head_;
      list += lists.of_head;
      begin();
    } else {
      now = ahead;
      ++at;
      if (left > 1) ahead = at[1];
    }
  }

 private:
  /// At the first step of the head, or of the next one that has steps.
  __device__ void begin() {
    for (;; ++head_, list += lists.of_head) {
      const std::int64_t row = list * lists.key_tiles + key_tile;
      left = lists.step_counts[row];
      at = lists.steps + row * lists.query_tiles;
      if (left > 0 || head_ == last) break;
    }
    if (left > 0) now = at[0];
    if (left > 1) ahead = at[1];
  }

  const GradientLists& lists;
  std::int64_t list;
  const int key_tile, last;
  int head_, left = 0;
  const ListedStep* at = nullptr;
  ListedStep now{}, ahead{};
};

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
