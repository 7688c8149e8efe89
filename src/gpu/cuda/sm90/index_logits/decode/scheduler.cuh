// SPDX-License-Identifier: Apache-2.0
/// The share of a CTA as each producer's warp finds it, and its way through the sequences.
#pragma once

#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/sm90/index_logits/shares.cuh"
#include "gpu/cuda/sm90/thread.cuh"
#include "op/common/division.hpp"
#include "op/index_logits/share.hpp"

namespace fovea::gpu::sm90::indexer::decode {

/// Stages of a sequence, whose last query sees all of its keys.
template <class Config>
__device__ __forceinline__ int stages_of_length(const Params& params, int length) {
  return (min(length, params.room) + Config::kKeys - 1) / Config::kKeys;
}

/// By a warp, whose lanes sum the costs of equal numbers of sequences.
template <class Config>
__device__ __forceinline__ Share share_of_cta(const Params& params) {
  const int groups = params.groups, slice = (groups + 31) / 32;
  const int first = min(lane_index() * slice, groups), last = min(first + slice, groups);
  const auto cost_of = [&](int sequence) {
    return detail::cost_of_group(stages_of_length<Config>(params, max(params.args.kv_len[sequence], 0)),
                                 Config::stage_cost(Config::kQueries));
  };
  int own = 0;
#pragma unroll 4
  for (int sequence = first; sequence < last; ++sequence) own += cost_of(sequence);
  const int behind = Warp::inclusive_sum(own), total = __shfl_sync(~0u, behind, 31);
  const int begin = begin_of_share(params, total, blockIdx.x), end = begin_of_share(params, total, blockIdx.x + 1);
  int at = behind - own, sequence = first;
  const bool holds = begin >= at && begin < behind;
  if (holds && slice > 1) {
    for (int cost; at + (cost = cost_of(sequence)) <= begin; ++sequence) at += cost;
  }
  const int holder = __ffs(static_cast<int>(__ballot_sync(~0u, holds))) - 1;
  if (holder < 0) return {};  // all sequences are empty
  return {__shfl_sync(~0u, sequence, holder), __shfl_sync(~0u, at, holder), begin, end};
}

/// Stages of a share take turns: producer and warpgroup i have those whose number in the share is i modulo their count. Returns
/// how many stages behind the first `passed` ones the next of `index` is.
template <int kCount>
__device__ __forceinline__ int turns_until(int passed, int index) {
  static_assert((kCount & (kCount - 1)) == 0);
  return (index - passed) & (kCount - 1);
}

/// The sequences of a CTA's share, each with those of its stages that are in the share.
template <class Config>
class TileScheduler {
 public:
  __device__ __forceinline__ TileScheduler(const Params& params_, Share share_)
      : params(params_), share(share_), at(share.at), next_sequence(share.group) {
    next();
  }

  __device__ __forceinline__ bool valid() const { return from < to; }
  __device__ __forceinline__ void next() {
    passed += to - from;
    from = to = 0;
    while (from >= to && next_sequence < params.groups && at < share.end) {
      sequence = next_sequence++;
      length = max(params.args.kv_len[sequence], 0);
      const int stages = stages_of_length<Config>(params, length);
      from = detail::stages_before(share.begin, at, stages, kStageCost);
      to = detail::stages_before(share.end, at, stages, kStageCost);
      at += detail::cost_of_group(stages, kStageCost);
    }
  }

  int sequence = 0, length = 0;
  int from = 0, to = 0;  ///< stages: the first, and behind the last
  int passed = 0;        ///< stages of the share before them

 private:
  static constexpr int kStageCost = Config::stage_cost(Config::kQueries);

  const Params& params;
  Share share;
  int at, next_sequence;
};

}  // namespace fovea::gpu::sm90::indexer::decode
