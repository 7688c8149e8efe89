// SPDX-License-Identifier: Apache-2.0
/// Scores, softmax and values of a warpgroup with 64 query rows, over the key tiles of its CTA.
#pragma once

#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/common/work_tile.cuh"
#include "gpu/cuda/sm90/attention/one_wave/storage.cuh"
#include "gpu/cuda/sm90/dense/exact_row.cuh"
#include "gpu/cuda/sm90/gemm.cuh"

namespace fovea::gpu::sm90::one_wave {

/// Number in the warpgroup of the lane's r-th row.
__device__ inline int group_row(int r) { return thread_index() % 128 / 32 * 16 + lane_index() / 4 + 8 * r; }

/// The same in the query tile, where each warpgroup has rows of its own.
__device__ inline int tile_row(int r) { return thread_index() / 32 * 16 + lane_index() / 4 + 8 * r; }

template <class Config>
__device__ dense::ScoreScale score_scale(const Params& params) {
  return {1, Config::kTransform ? kLog2e : params.scale_log2};
}

template <class Config>
class Math {
 public:
  using Softmax = OnlineSoftmax<Warp, Config::kKeyTile / 2>;
  static constexpr int kOut = Config::kHeadDimV / 2;

  /// `work`: of this warpgroup's rows.
  __device__ Math(const Params& params_, Storage<Config>& storage_, const WorkTile& work_, int row_group_)
      : params(params_), storage(storage_), work(work_), row_group(row_group_) {}

  /// Computes `out`, relative to 2^softmax.base(), over key tiles [begin, end). The shared memory begins
  /// with key tile `loaded`. Nothing overlaps within a warpgroup: one copy of the code is fetched sooner.
  __device__ __forceinline__ void operator()(int begin, int end, int loaded) {
    softmax.begin();
    clear(out);
#pragma unroll 1
    for (int tile = begin; tile < end; ++tile) {
      issue_scores(tile - loaded);
      wgmma_wait<0>();
      if (scores_to_probabilities(tile)) scale_rows(out, softmax.rescale);
      round_to<Element>(probabilities, scores);
      issue_values(tile - loaded);
      wgmma_wait<0>();
      fence_operand(out);
    }
  }

  float out[kOut];
  Softmax softmax;

 private:
  using Element = typename Config::Element;
  static constexpr int kScores = Config::kKeyTile / 2;

  /// Waits for copies of all threads.
  __device__ __forceinline__ static void wait(std::uint64_t* full) {
    barrier_wait(shared_address(full), 0);
    fence_shared_for_async();  // threads do not wait for their own copies, so they cannot fence
  }
  __device__ __forceinline__ void issue_scores(int at) {
    wait(&storage.k_full[at]);
    const std::uint32_t rows = shared_address(storage.q) + row_group * 64 * kSliceBytes;
    gemm_ss<Element, Config::kHeadDimQk, Config::kKeyTile>(scores, {rows, Config::kQuerySliceBytes},
                                                           {shared_address(storage.k[at]), Config::kKeySliceBytes});
  }
  __device__ __forceinline__ void issue_values(int at) {
    wait(&storage.v_full[at]);
    gemm_rs<Element, Config::kKeyTile, Config::kHeadDimV>(out, probabilities, {shared_address(storage.v[at]), Config::kKeySliceBytes});
  }

  __device__ __forceinline__ bool scores_to_probabilities(int tile) {
    fence_operand(scores);
    if constexpr (Config::kTransform) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) scores[i] = dense::transformed(params, scores[i]);
    }
    if (tile < work.full_first || tile >= work.full_last) mask(tile * Config::kKeyTile);
    return softmax(scores, score_scale<Config>(params).log2, params.zero);
  }
  __device__ __forceinline__ void mask(int key) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int column = key + lane_column(lane_index());
      const WorkTile::Keys seen = work.keys_of(work.token + (group_row(r) >> params.packed_shift));
      mask_row(scores, r, seen.begin - column, seen.end - column);
    }
  }

  const Params& params;
  Storage<Config>& storage;
  const WorkTile& work;
  const int row_group;
  float scores[kScores];
  std::uint32_t probabilities[kScores / 2];  // operand a of P V
};

}  // namespace fovea::gpu::sm90::one_wave
