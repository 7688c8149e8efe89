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

/// Key tiles [tile, last) of a CTA, that take turns in shared memory.
template <class Config, class Loader>
struct TurnsOf {
  const Loader& loader;
  Storage<Config>& storage;
  int tile, last;
  bool any = false;
  PipelineState<Config::kKeyTiles> at, before;

  /// Goes on to the next tile. Once both warpgroups have read the tile before, its place takes another.
  __device__ __forceinline__ void pass() {
    __syncwarp();
    if (lane_index() == 0) barrier_arrive(shared_address(&storage.empty[at.stage]));
    const int next = tile + Config::kKeyTiles - 1;
    if (any && next < last) {
      barrier_wait(shared_address(&storage.empty[before.stage]), before.parity);
      loader.load_key_tile(next, before.stage);
      before.advance();
    }
    any = true;
    ++tile;
    at.advance();
  }
};

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
    for (int tile = begin; tile < end; ++tile) add_tile(tile, tile - loaded, 0);
  }

  /// The same where the CTA's key tiles [first, last) take turns in shared memory: Q K^T of a tile
  /// overlaps P V of the one before.
  template <class Loader>
  __device__ __forceinline__ void in_turns(const Loader& loader, int first, int last) {
    softmax.begin();
    clear(out);
    TurnsOf<Config, Loader> turns{loader, storage, first, last};
    while (turns.tile < last && turns.tile < work.first) turns.pass();
    const int end = min(last, work.last);
    if (turns.tile < end) {
      issue_scores(turns.at.stage, turns.at.parity);
      wgmma_wait<0>();
      scores_to_probabilities(turns.tile);
      round_to<Element>(probabilities, scores);
#pragma unroll 1
      while (turns.tile + 1 < end) {
        PipelineState<Config::kKeyTiles> next = turns.at;
        next.advance();
        issue_scores(next.stage, next.parity);
        issue_values(turns.at.stage, turns.at.parity);
        wgmma_wait<1>();
        const bool grown = scores_to_probabilities(turns.tile + 1);
        compute_before_wait(softmax.sum[0] + softmax.sum[1]);
        wgmma_wait<0>();
        fence_operand(out);
        turns.pass();
        if (grown) scale_rows(out, softmax.rescale);
        round_to<Element>(probabilities, scores);
      }
      issue_values(turns.at.stage, turns.at.parity);
      wgmma_wait<0>();
      fence_operand(out);
      turns.pass();
    }
    while (turns.tile < last) turns.pass();
  }

  float out[kOut];
  Softmax softmax;

 private:
  using Element = typename Config::Element;
  static constexpr int kScores = Config::kKeyTile / 2;

  /// `at`: place of the key tile in shared memory, filled in phases of `parity`.
  __device__ __forceinline__ void add_tile(int tile, int at, std::uint32_t parity) {
    issue_scores(at, parity);
    wgmma_wait<0>();
    if (scores_to_probabilities(tile)) scale_rows(out, softmax.rescale);
    round_to<Element>(probabilities, scores);
    issue_values(at, parity);
    wgmma_wait<0>();
    fence_operand(out);
  }

  /// Waits for copies of all threads.
  __device__ __forceinline__ static void wait(std::uint64_t* full, std::uint32_t parity) {
    barrier_wait(shared_address(full), parity);
    fence_shared_for_async();  // threads do not wait for their own copies, so they cannot fence
  }
  __device__ __forceinline__ void issue_scores(int at, std::uint32_t parity) {
    wait(&storage.k_full[at], parity);
    const std::uint32_t rows = shared_address(storage.q) + row_group * 64 * kSliceBytes;
    gemm_ss<Element, Config::kHeadDimQk, Config::kKeyTile>(scores, {rows, Config::kQuerySliceBytes},
                                                           {shared_address(storage.k[at]), Config::kKeySliceBytes});
  }
  __device__ __forceinline__ void issue_values(int at, std::uint32_t parity) {
    wait(&storage.v_full[at], parity);
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
