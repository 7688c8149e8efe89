// SPDX-License-Identifier: Apache-2.0
/// The sequences of a paged batch, and how many CTAs compute them while a co-launched kernel computes the
/// others on the rest of the device.
#pragma once

#include "gpu/cuda/sm90/dense/ragged_sequence.cuh"
#include "gpu/cuda/sm90/paged_attention/config.hpp"

namespace fovea::gpu::sm90::paged_attention {

/// A sequence, clamped to the bounds of the plan whatever the lists hold.
__device__ inline dense::RaggedSequence any_sequence_at(const Params& params, int index) {
  const int rows = static_cast<int>(params.rows), begin = min(max(params.cu_seqlens_q[index], 0), rows);
  const int end = min(max(params.cu_seqlens_q[index + 1], 0), rows);
  return {begin, 0, min(max(end - begin, 0), params.seq_q), min(max(params.kv_len[index], 0), params.seq_k)};
}
/// A sequence as dense::TileScheduler sees it. Those of the co-launched kernel have no query rows here.
__device__ inline dense::RaggedSequence sequence_at(const Params& params, int index) {
  dense::RaggedSequence sequence = any_sequence_at(params, index);
  if (sequence.seq_q < params.prefill_from) sequence.seq_q = 0;
  return sequence;
}

/// Counts the work of both kernels, by a whole warp. All warps of all CTAs find the same number.
///
/// This kernel deals out pairs of query tiles in rounds. The other kernel reads keys nearly as fast with
/// half of the device as with all of it, and gets the CTAs that become free. So this one aims at half of
/// the device, or more where its share of the work is larger, and takes whole rounds.
template <class Config>
class ActiveCtas {
 public:
  __device__ explicit ActiveCtas(const Params& params_) : params(params_) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int index = lane; index < params.batch; index += 32) add(any_sequence_at(params, index));
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      pairs += __shfl_xor_sync(~0u, pairs, distance);
      here += __shfl_xor_sync(~0u, here, distance);
      decode += __shfl_xor_sync(~0u, decode, distance);
    }
  }

  __device__ int count(int ctas) const {
    if (decode == 0) return ctas;
    const int work_heads = params.heads >> params.packed_shift, all_pairs = pairs * work_heads;
    const float own = kTileCost * here * static_cast<float>(work_heads);
    const float other = decode * static_cast<float>(params.heads / params.heads_per_kv);
    const int share = max(static_cast<int>(static_cast<float>(ctas) * own / (own + other)), (ctas + 1) / 2);
    const int rounds = max((all_pairs + share / 2) / share, (all_pairs + ctas - 1) / ctas);
    return rounds == 0 ? 0 : (all_pairs + rounds - 1) / rounds;
  }

 private:
  __device__ void add(const dense::RaggedSequence& sequence) {
    if (sequence.seq_q == 0) return;
    const detail::Band band = detail::make_band(params.mask, sequence.seq_q, sequence.seq_k);
    const int middle = sequence.seq_q / 2, tokens = Config::kRowTile >> params.packed_shift;
    const detail::KeyRange seen = detail::keys_seen_by(band, middle, sequence.seq_k);
    const float key_tiles = static_cast<float>(static_cast<int>(seen.size())) / Config::kKeyTile;
    if (sequence.seq_q < params.prefill_from) {
      decode += key_tiles;
    } else {
      const int tiles = (sequence.seq_q + tokens - 1) / tokens;
      pairs += (tiles + 1) / 2;
      here += static_cast<float>(tiles) * key_tiles;
    }
  }

  const Params& params;
  int pairs = 0;     // pairs of query tiles of a work head
  float here = 0;    // key tiles of all query tiles of a work head
  float decode = 0;  // key tiles of a kv head of the other kernel's sequences
};

template <class Config>
__device__ int active_ctas(const Params& params) {
  const int ctas = static_cast<int>(gridDim.x);
  return params.prefill_from == 0 ? ctas : ActiveCtas<Config>(params).count(ctas);
}

}  // namespace fovea::gpu::sm90::paged_attention
