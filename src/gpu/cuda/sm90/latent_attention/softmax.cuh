// SPDX-License-Identifier: Apache-2.0
/// Scores of a key tile become probabilities. A warp has 16 rows of 64 columns, in the order of an MMA's accumulator: a lane has two rows,
/// eight apart, and two neighbours of every eight columns. Four lanes share a row.
#pragma once

#include "gpu/cuda/sm90/fragment.cuh"
#include "gpu/cuda/sm90/latent_attention/output.cuh"
#include "op/common/split_schedule.hpp"

namespace fovea::gpu::sm90::latent {

/// Whether each of a lane's rows sees all keys of the tile that begins with `key`.
__device__ inline bool sees_all(const detail::TileRange (&seen)[2], int key) {
  return key >= seen[0].begin && key >= seen[1].begin && key + kKeyTile <= seen[0].end && key + kKeyTile <= seen[1].end;
}

/// Masks the scores of keys that a row does not see, and of absent keys (`present`: a bit for each key).
template <bool kAnyAbsent>
__device__ inline void mask_scores(float (&scores)[32], const detail::TileRange (&seen)[2], int key, uint2 present, int lane) {
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int column = column_of(i) + lane_column(lane);
    const detail::TileRange& row = seen[row_of(i)];
    const bool absent = kAnyAbsent && ((i / 16 == 0 ? present.x : present.y) >> column % 32 & 1) == 0;
    if (absent || key + column < row.begin || key + column >= row.end) scores[i] = -INFINITY;
  }
}

/// The largest score of each row, among the columns of this lane.
__device__ inline void find_largest(const float (&scores)[32], float (&largest)[2]) {
  largest[0] = largest[1] = -INFINITY;
#pragma unroll
  for (int i = 0; i < 32; ++i) largest[row_of(i)] = fmaxf(largest[row_of(i)], scores[i]);
}

/// Finds the offset of each row's exponents: maximum * scale_log2 if that is plain. Otherwise the offset is 0, and the maximum is
/// subtracted from the scores. Returns whether both rows are plain. OnlineSoftmax repeats this arithmetic, because one function for both
/// changes the instructions of dense attention.
__device__ inline bool find_offsets(const float (&maximum)[2], float scale_log2, float (&scores)[32], float (&offset)[2]) {
  float base[2];
  bool both = true;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    offset[r] = maximum[r] * scale_log2;
    const bool plain = is_plain(offset[r]);
    base[r] = plain | (maximum[r] == -INFINITY) ? 0 : maximum[r];
    offset[r] = plain ? offset[r] : 0;
    both &= plain;
  }
#pragma unroll
  for (int i = 0; i < 32; ++i) scores[i] -= base[row_of(i)];
  return both;
}

/// Whether scores need more than one multiply-add each: the row outgrows its maximum, or the offset is not plain.
__device__ inline bool outgrows(float largest, float maximum, float scale_log2, float offset) {
  return ((largest - maximum) * scale_log2 > kSlack) | !is_plain(offset);
}

/// Turns scores into probabilities, relative to 2^offset, and adds them to `sum`.
template <class Element>
__device__ __forceinline__ void exponentiate(const float (&scores)[32], float scale_log2, const float (&offset)[2], float (&sum)[2],
                                             std::uint32_t (&probabilities)[16]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {  // neighbours of a row
    float two[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) two[j] = Warp::exp2(fmaf(scores[2 * i + j], scale_log2, -offset[i % 2]));
    sum[i % 2] += two[0] + two[1];
    probabilities[i] = pack<Element>(two[0], two[1]);
  }
}

}  // namespace fovea::gpu::sm90::latent
