// SPDX-License-Identifier: Apache-2.0
/// Maxima, sums and largest scores of a lane's two rows, which the math warpgroups exchange through shared memory.
///
/// A row's maximum grows only when a score exceeds it by kSlack. So after a work tile's first key tiles, a vote of the warp is mostly
/// enough. An exchange through shared memory, or a shuffle, would wait for the MMAs of scores, whose operands take its whole bandwidth.
#pragma once

#include "gpu/cuda/sm90/latent_attention/pingpong/storage.cuh"
#include "gpu/cuda/sm90/latent_attention/softmax.cuh"

namespace fovea::gpu::sm90::latent {

template <class Config>
struct RowState {
  __device__ RowState(const Params& params_, Storage<Config>& storage_) : params(params_), storage(storage_) {
    if (Config::kLoad == Load::quantised) scale_of_codes = scale_log2_of(params);
  }

  __device__ void begin(int r) {
    maximum[r] = top[r] = -INFINITY;
    sum[r] = 0;
  }

  // ---- maxima -------------------------------------------------------------------------------------------------------------------

  /// Returns whether rows of this warp have new maxima, and stores these for the other warpgroup. The first key tile of a work tile always
  /// sets them.
  template <class Tile>
  __device__ bool grow_maximum(Tile, bool first, float (&scores)[32], const float (&largest)[2], float (&rescale)[2], float (&offset)[2]) {
    bool grown = first;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (Config::kGathered) top[r] = fmaxf(top[r], largest[r]);
      rescale[r] = 1;
      offset[r] = maximum[r] * scale_log2();
      grown |= outgrows(largest[r], maximum[r], scale_log2(), offset[r]);
    }
    if (!__any_sync(~0u, grown)) return false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rescale[r] = move_maximum(r, followed(maximum[r], Warp::largest_of_row(largest[r]), scale_log2()));
      if (lane() % 4 == 0) storage.maximum[Tile::value][first_row() + 8 * r] = maximum[r];
    }
    find_offsets(maximum, scale_log2(), scores, offset);
    return true;
  }

  /// Takes over the maxima of the other warpgroup's tile, and calls `rescale_out` with the factors. The stored maximum of a row that has
  /// not grown is older and not larger.
  template <class Tile, class Rescale>
  __device__ void follow_maximum(Tile, Rescale&& rescale_out) {
    float other[2], rescale[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) other[r] = storage.maximum[Tile::value][first_row() + 8 * r];
    if (!__any_sync(~0u, other[0] > maximum[0] || other[1] > maximum[1])) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) rescale[r] = move_maximum(r, fmaxf(maximum[r], other[r]));
    rescale_out(rescale);
  }

  // ---- largest scores -----------------------------------------------------------------------------------------------------------

  // The odd tiles' warpgroup takes over the largest scores of the even tiles, after the last of them.
  __device__ void publish_largest() {
    if constexpr (Config::kGathered) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float all = Warp::largest_of_row(top[r]);
        if (lane() % 4 == 0) storage.largest[first_row() + 8 * r] = all;
      }
    }
  }
  __device__ void take_largest() {
    if constexpr (Config::kGathered) {
#pragma unroll
      for (int r = 0; r < 2; ++r) top[r] = fmaxf(top[r], storage.largest[first_row() + 8 * r]);
    }
  }

  // ---- sums ---------------------------------------------------------------------------------------------------------------------

  // Four lanes share the sum of a row. After the last pair, warpgroup 0 publishes the sums of the even tiles; warpgroup 1 adds its own and
  // publishes the totals.
  __device__ void reduce_sum() {
#pragma unroll
    for (float& x : sum) x = Warp::sum_of_row(x);
  }
  template <class Tile>
  __device__ void publish_sum(Tile) {
    reduce_sum();
    keep_sum_once();
    if (lane() % 4 == 0) {
      storage.sum[Tile::value][first_row()] = sum[0];
      storage.sum[Tile::value][first_row() + 8] = sum[1];
    }
  }
  template <class Tile>
  __device__ void add_sum(Tile) {
    if (lane() % 4 == 0) {
      sum[0] += storage.sum[Tile::value][first_row()];
      sum[1] += storage.sum[Tile::value][first_row() + 8];
    }
  }
  template <class Tile>
  __device__ void take_sum(Tile) {
    sum[0] = sum[1] = 0;
    add_sum(Tile{});
  }

  // Recomputed at each use, which saves registers for accumulators.
  static __device__ int lane() { return lane_index(); }
  static __device__ int warp() { return threadIdx.x % 128 / 32; }
  static __device__ int first_row() { return warp() * 16 + lane_row(lane()); }
  __device__ float scale_log2() const { return Config::kLoad == Load::quantised ? scale_of_codes : params.scale_log2; }

  const Params& params;
  Storage<Config>& storage;
  float maximum[2], sum[2];
  float top[2];              // this lane's largest scores, which the maximum follows only roughly (not by TMA loads)
  float scale_of_codes = 0;  // scale_log2 times the magnitude of the cache's scale; above 0, so that minus infinity stays so

 private:
  /// Returns the factor of the sum.
  __device__ float move_maximum(int r, float to) {
    const float rescale = rescale_factor<Warp>(maximum[r], to, scale_log2());
    maximum[r] = to;
    sum[r] *= rescale;
    return rescale;
  }
  __device__ void keep_sum_once() {
    if (lane() % 4 != 0) sum[0] = sum[1] = 0;
  }
};

}  // namespace fovea::gpu::sm90::latent
