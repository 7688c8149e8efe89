// SPDX-License-Identifier: Apache-2.0
/// The tiles of columns that a block mask lists for the rows of a CTA. A walk holds the one that comes next.
#pragma once

#include <type_traits>

#include "gpu/cuda/common/gradient/lists.cuh"
#include "gpu/cuda/portable/attention_backward/work.cuh"

namespace fovea::gpu::portable::attention_backward {

/// A listed tile, and the word with the bits of its first query and key; null where the lists hide nothing.
struct ListedColumns : Step {
  const std::int32_t* bits;
};

/// The key tiles that a query block lists, in the order of their numbers. They are read one ahead.
template <class Config>
class ListedKeys {
 public:
  ListedColumns step;

  __device__ __forceinline__ ListedKeys(const typename Config::Params& params, const Work& work_)
      : lists(params.lists), work(work_), part(lists.key_rows / Config::kColumns) {
    const std::int64_t row = lists.list(work.sequence.batch, work.head) * lists.q_blocks + work.row / lists.of.block_q;
    step.head = work.head / params.heads_per_kv;
    at = lists.tiles + row * lists.most_listed;
    left = lists.listed_count(row);
    if (left > 0) ahead = *at;
    advance();
  }
  __device__ __forceinline__ bool any() const { return step.tile >= 0; }
  __device__ __forceinline__ void advance() {
    const int parts = lists.key_rows / Config::kColumns;
    do {
      if (part == parts) {
        if (left == 0) {
          step.tile = -1;
          return;
        }
        now = ahead;
        part = 0;
        if (--left > 0) ahead = *++at;
      }
      step.tile = now.tile() * parts + part++;
    } while (step.tile < work.columns.first || step.tile >= work.columns.last);
    const int key = step.tile * Config::kColumns;
    step.bits = now.slot() == kFullBlock ? nullptr : lists.bits(work.sequence.batch, work.head, work.row, key, now.slot());
  }

 private:
  const GradientLists& lists;
  const Work& work;
  const ListedKeyTile* at;
  ListedKeyTile now, ahead;
  int part, left;
};

/// The query tiles that list a key tile, head after head of the kv head.
template <class Config>
class ListedQueries {
 public:
  ListedColumns step;

  __device__ __forceinline__ ListedQueries(const typename Config::Params& params, const Work& work_)
      : lists(params.lists),
        work(work_),
        scheduler(params.lists, work_.sequence.batch, work_.head * params.heads_per_kv, params.heads_per_kv, work_.row / Config::kRows) {
    left = ListedTileScheduler::count(lists, work.sequence.batch, work.head * params.heads_per_kv, params.heads_per_kv,
                                      work.row / Config::kRows);
    advance();
  }
  __device__ __forceinline__ bool any() const { return step.tile >= 0; }
  __device__ __forceinline__ void advance() {
    do {
      if (part == kParts) {
        if (left == 0) {
          step.tile = -1;
          return;
        }
        now = scheduler.next();
        part = 0;
        --left;
      }
      step.tile = now.step.query_tile * kParts + part++;
    } while (step.tile < work.columns.first || step.tile >= work.columns.last);
    step.head = now.head;
    const int slot = now.step.slots[0];
    step.bits = slot == kFullBlock ? nullptr : lists.bits(work.sequence.batch, now.head, step.tile * Config::kColumns, work.row, slot);
  }

 private:
  static constexpr int kParts = kQueryTile / Config::kColumns;

  const GradientLists& lists;
  const Work& work;
  ListedTileScheduler scheduler;
  ListedTileScheduler::HeadStep now;
  int part = kParts, left;
};

template <class Config>
using ListedSteps = std::conditional_t<Config::kRowsAreQueries, ListedKeys<Config>, ListedQueries<Config>>;

}  // namespace fovea::gpu::portable::attention_backward
