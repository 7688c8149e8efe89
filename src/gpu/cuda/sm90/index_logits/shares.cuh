// SPDX-License-Identifier: Apache-2.0
/// The share of a CTA, and its way through it: Stream-K, without a fix-up, as logits need no reduction. Work is stages of keys, each with a
/// group of queries of one sequence. Groups lie on a line, by what they cost, and each CTA has an equal part of it. Ranges of columns lie
/// on the device, so each CTA sums the costs of all groups.
#pragma once

#include <cstdint>
#include <cub/block/block_scan.cuh>

#include "gpu/cuda/sm90/index_logits/columns.cuh"
#include "gpu/cuda/sm90/thread.cuh"
#include "op/index_logits/share.hpp"

namespace fovea::gpu::sm90::indexer {

/// Rows of queries.
struct Group {
  int first_row, rows;
};

__device__ inline Group group_at(const Params& params, int index) {
  const int sequence = params.sequence_groups.quotient(index), rows = params.sequence_rows.divisor;
  const int first = (index - sequence * params.sequence_groups.divisor) * params.rows_of_group;
  return {sequence * rows + first, min(params.rows_of_group, rows - first)};
}

/// Stages of `Config::kKeys` keys, from a multiple of them on.
struct Stages {
  int first_key, count;
};

/// Those with the columns that some queries see: the first, and the one behind the last.
template <class Config>
__device__ Stages stages_of(int2 some) {
  const int first_key = some.x / Config::kKeys * Config::kKeys;
  return {first_key, max(some.y - first_key + Config::kKeys - 1, 0) / Config::kKeys};
}

/// Columns that some queries of a group see, by one thread: the first, and the one behind the last.
template <bool kPaged>
__device__ int2 columns_of_group(const Params& params, const Group& group) {
  const int last_row = group.first_row + group.rows - 1;
  if (kPaged && params.shape.paged) return columns_of_row<kPaged>(params, last_row);  // it sees what the others see
  int2 some = {static_cast<int>(params.shape.columns), 0};
#pragma unroll 4
  for (int row = group.first_row; row <= last_row; ++row) {
    const int2 own = columns_of_row<false>(params, row);
    if (own.x < own.y) some = {min(some.x, own.x), max(some.y, own.y)};
  }
  return some;
}

template <class Config>
__device__ int cost_at(const Params& params, int index) {
  const Group group = group_at(params, index);
  const int stages = stages_of<Config>(columns_of_group<Config::kPaged>(params, group)).count;
  return detail::cost_of_group(stages, Config::stage_cost(group.rows));
}

/// From `begin` to before `end` on the line. The first group lies at `at`.
struct Share {
  int group, at, begin, end;
};

/// Where the share of a CTA begins on a line of this length; behind the last CTA, its end.
__device__ inline int begin_of_share(const Params& params, int total, unsigned cta) {
  return cta < gridDim.x ? static_cast<int>(__umulhi(total, cta * params.share)) : total;
}

template <class Config>
using CostScan = cub::BlockScan<int, Config::kThreads, cub::BLOCK_SCAN_WARP_SCANS>;

/// By all threads of the CTA. The one whose groups hold the begin of the share stores it. A scan over warps takes CUB's code.
template <class Config, class Storage>
__device__ void find_share(Storage& storage, const Params& params) {
  const int groups = params.groups, slice = (groups + Config::kThreads - 1) / Config::kThreads;
  const int first = min(static_cast<int>(threadIdx.x) * slice, groups), last = min(first + slice, groups);
  int own = 0, at = 0, total = 0;
  for (int index = first; index < last; ++index) own += cost_at<Config>(params, index);
  CostScan<Config>(storage.sums).ExclusiveSum(own, at, total);
  const int begin = begin_of_share(params, total, blockIdx.x), end = begin_of_share(params, total, blockIdx.x + 1);
  if (total == 0 && threadIdx.x == 0) storage.share = {};
  if (begin < at || begin >= at + own) return;
  int index = first;
  for (int cost = own; slice > 1 && at + (cost = cost_at<Config>(params, index)) <= begin; ++index) at += cost;
  storage.share = {index, at, begin, end};
}

/// A group with its stages, found by a warp whose lane i looks at row i.
template <class Config>
class GroupView {
 public:
  Group group{};
  Stages stages{};
  int2 seen{};   ///< columns, by the lane's row
  int2 every{};  ///< columns that all rows of the group see

  __device__ void look_at(const Params& params, int index) {
    group = group_at(params, index);
    const int columns = static_cast<int>(params.shape.columns);
    const bool exists = lane_index() < group.rows;
    seen = exists ? columns_of_row<Config::kPaged>(params, group.first_row + lane_index()) : int2{0, 0};
    const bool sees = seen.x < seen.y;
    stages = stages_of<Config>({__reduce_min_sync(~0u, sees ? seen.x : columns), __reduce_max_sync(~0u, sees ? seen.y : 0)});
    every = {__reduce_max_sync(~0u, seen.x), __reduce_min_sync(~0u, exists ? seen.y : columns)};
  }
};

/// The groups of a CTA's share, as a warp walks through them, each with those of its stages that are in the share.
template <class Config>
class GroupScheduler : public GroupView<Config> {
 public:
  using GroupView<Config>::stages;

  __device__ GroupScheduler(const Params& params_, const Share& share_)
      : params(params_), share(share_), at(share_.at), index(share_.group) {
    next();
  }

  __device__ bool valid() const { return stages.count > 0; }
  __device__ void next() {
    stages.count = 0;
    while (stages.count == 0 && index < params.groups && at < share.end) {
      this->look_at(params, index++);
      const int from = stages_before(share.begin), to = stages_before(share.end);
      at += detail::cost_of_group(stages.count, Config::stage_cost(this->group.rows));
      stages = {stages.first_key + from * Config::kKeys, to - from};
    }
  }

 private:
  __device__ int stages_before(int place) const {
    return detail::stages_before(place, at, stages.count, Config::stage_cost(this->group.rows));
  }

  const Params& params;
  const Share& share;
  int at, index;
};

/// -inf, by the lanes of a warp.
template <class Element>
__device__ void store_outside(const Params& params, std::int64_t row, int begin, int end) {
  Element* const out = static_cast<Element*>(params.args.out) + row * params.shape.out_row;
#pragma unroll 4
  for (int column = begin + lane_index(); column < end; column += 32) out[column] = Element(-INFINITY);
}
__device__ inline void store_outside(const Params& params, int row, int begin, int end) {
  params.bf16_out ? store_outside<__nv_bfloat16>(params, row, begin, end) : store_outside<float>(params, row, begin, end);
}

/// -inf for the columns before and behind the stages of each group, by a warp. CTAs take turns at groups and pieces of them.
template <class Config>
__device__ void store_outside_of_groups(const Params& params) {
  constexpr int kPiece = 4096;  // columns
  const int columns = static_cast<int>(params.shape.columns), ctas = static_cast<int>(gridDim.x);
  if (params.shape.keep_outside) return;
  int index = static_cast<int>(blockIdx.x);  // of a group
  for (int begin = 0; begin < columns; begin += kPiece, index -= params.groups) {
    for (; index < params.groups; index += ctas) {
      GroupView<Config> view;
      view.look_at(params, index);
      const int end = min(begin + kPiece, columns), some = view.stages.count;
      const int seen_begin = some > 0 ? view.stages.first_key : columns, seen_end = some > 0 ? seen_begin + some * Config::kKeys : columns;
      for (int row = view.group.first_row; row < view.group.first_row + view.group.rows; ++row) {
        store_outside(params, row, begin, min(seen_begin, end));
        store_outside(params, row, max(begin, seen_end), end);
      }
    }
  }
}

}  // namespace fovea::gpu::sm90::indexer
