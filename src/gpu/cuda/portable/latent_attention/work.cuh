// SPDX-License-Identifier: Apache-2.0
/// Sequences and work tiles: the scheduler of paged attention over batches of one length, and over lists of tokens.
#pragma once

#include "gpu/common/score_transform.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/portable/latent_attention/params.hpp"
#include "gpu/cuda/portable/paged_attention/tile_scheduler.cuh"

namespace fovea::gpu::portable::latent_attention {

using paged_attention::WorkTile;

/// Batch entry and token of a sequence of lists.
struct ListedToken {
  int batch, token;

  __device__ ListedToken(const Params& params, int index)
      : batch(params.tokens.quotient(index)), token(index - batch * params.tokens.divisor) {}
  __device__ int length(const Params& params, const TokenList& list) const {
    return list.lengths == nullptr ? list.topk : max(min(list.lengths[params.length_per_token ? token : batch], list.topk), 0);
  }
  __device__ const std::int32_t* indices(const TokenList& list) const {
    return list.indices + batch * list.batch_stride + token * list.token_stride;
  }
};

/// Found by the scheduler.
template <int kRowTile>
__device__ __forceinline__ paged_attention::Sequence sequence_at(const Params& params, int index) {
  paged_attention::Sequence s{.index = index};
  if (!params.listed && params.cu_seqlens_q != nullptr) {
    return paged_attention::sequence_at<kRowTile>(static_cast<const paged_attention::Params&>(params), index);
  }
  if (index >= params.batch) return s;
  s.seq_q = params.seq_q;
  if (params.listed) {
    const ListedToken token(params, index);
    paged_attention::complete<kRowTile>(params, s, token.length(params, params.main.list) + token.length(params, params.extra.list));
  } else {
    paged_attention::complete<kRowTile>(params, s, params.kv_len[index]);
  }
  return s;
}

/// Batch entry, token and head of a packed row of a sequence.
struct RowPlace {
  std::int64_t batch, token;
  int head;

  __device__ RowPlace(const Params& params, const WorkTile& work, int kv_head, int packed) {
    const int of_sequence = params.group.quotient(packed);
    head = kv_head * params.group.divisor + packed - of_sequence * params.group.divisor;
    batch = work.sequence;
    token = work.q_begin + of_sequence;
    if (!params.listed) return;
    const ListedToken listed(params, work.sequence);
    batch = listed.batch;
    token = listed.token;
  }
  /// Ragged tensors have a batch stride of 0.
  __device__ std::int64_t in(const detail::RowStrides& strides) const {
    return batch * strides.batch + token * strides.row + head * strides.head;
  }
};

/// Index of a partial result: row `row` of the query tile in `slot`.
__device__ inline std::int64_t cell_of(const Params& params, int slot, int kv_head, int row, int row_tile) {
  return (std::int64_t{slot} * params.kv_heads + kv_head) * row_tile + row;
}

__device__ inline float cache_scale_of(const Params& params) { return params.cache_scale == nullptr ? 1.0f : *params.cache_scale; }

/// The scale of e4m3 keys joins that of the scores.
__device__ inline ScoreTransform<Warp> score_transform(const Params& params) {
  return ScoreTransform<Warp>::make(params.scale * cache_scale_of(params), 0, 0);
}

/// The softmax of a row over all of its keys.
struct RowResult {
  float sum, base;  // the sum is relative to 2^base
  float largest;    // score

  __device__ void store(const Params& params, const RowPlace& place, float scale_log2) const {
    if (params.lse != nullptr) params.lse[place.in(params.lse_strides)] = lse_of(sum, base) * kLn2;
    if (params.max_logits != nullptr) params.max_logits[place.in(params.max_logits_strides)] = largest * scale_log2 * kLn2;
  }
  /// Factor of the row's sums of values, which have the scale of the cache.
  __device__ float normalise(const Params& params, int head, float value_scale) const {
    if (sum == 0) return 0;
    return value_scale / (params.sink == nullptr ? sum : sum + exp2f(fmaf(params.sink[head], kLog2e, -base)));
  }
};

}  // namespace fovea::gpu::portable::latent_attention
