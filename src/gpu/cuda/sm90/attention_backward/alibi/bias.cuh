// SPDX-License-Identifier: Apache-2.0
/// ALiBi of a score warpgroup, whose rows are keys and whose columns are queries.
///
/// On one side of the diagonals, slope times distance is linear in key and query. One more MMA adds it to S: operand a has the part of
/// each key and the slope, operand b the number of each query, counted from the middle of its tile.
#pragma once

#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/common/gradient/sequence_index.cuh"
#include "gpu/cuda/sm90/attention_backward/storage.cuh"
#include "gpu/cuda/sm90/dense/biased_gemm.cuh"
#include "gpu/cuda/sm90/thread.cuh"

namespace fovea::gpu::sm90::attention_backward {

/// The key at distance 0 of the first query.
template <class Params>
__device__ __forceinline__ int first_diagonal(const Params& params, const Sequence& at) {
  return params.mask.anchor == Anchor::bottom_right ? at.seq_k - at.seq_q : 0;
}

/// Adds slopes to the steps of `Scheduler`.
template <class Scheduler>
class SlopedSteps {
 public:
  template <class Params>
  __device__ SlopedSteps(const Params& params, const KeyTile& tile)
      : scheduler(params, tile),
        slopes(params.bias.slopes + sequence_index(params, tile.sequence) * params.bias.slope_batch),
        slope_head(params.bias.slope_head),
        units(params.units_of_slope),
        first(tile.begin - first_diagonal(params, tile.sequence)) {}

  __device__ SlopedStep next() {
    const Step step = scheduler.next();
    const float natural = __ldg(slopes + step.head * slope_head), slope = natural * units;
    const int apart = first - step.query_tile * kQueryTile;
    const float most = fabsf(slope) * (fabsf(static_cast<float>(apart)) + kSpan);
    return {step, slope, fabsf(natural) <= kMostNatural && most <= kMost ? slope : 0, apart};
  }

 private:
  // Up to these, scores in a tile differ so little that their sums keep enough digits, and parts of keys are finite.
  static constexpr float kMostNatural = 1, kMost = 1 << 20, kSpan = 256;

  Scheduler scheduler;
  const float* slopes;
  std::int64_t slope_head;
  float units;
  int first;
};

/// In the place of StepBias.
struct NoStepBias {};

/// The bias of a warp's 16 keys in a step.
template <class Config>
class StepBias {
 public:
  using Element = typename Config::Element;
  static constexpr int kScores = kQueryTile / 2, kUnit = decltype(AlibiStorage<Element>::query_numbers)::kUnit;

  /// At a key tile. `key`: the warp's first, counted in the CTA. `band_end`: GradientOrder::high.
  template <class Params>
  __device__ __forceinline__ void begin(const Params& params, const KeyTile& tile, int key_, int band_end) {
    key = uniform(key_);
    left_alone = band_end <= first_diagonal(params, tile.sequence);
    const int lane = lane_index();
    middle_key = key + lane / 4 - kQueryTile / 2;
    keys_mask = lane % 4 == 0 ? ~0u : 0;
    slope_mask = lane % 4 == 1 ? ~0u : 0;
  }

  /// Beside the MMAs of a step: operand a.
  __device__ __forceinline__ std::uint32_t (&operand_of(const SlopedStep& step))[4] {
    const int apart = uniform(step.apart);
    const bool left = left_alone || apart + key < kLeftUntil;
    slope = step.slope;
    const bool has_diagonals = (apart + key > -16) & (apart + key < kQueryTile - 1) & !left_alone;
    mixed = has_diagonals | (step.mma_slope != slope);
    distance = static_cast<float>(apart + middle_key);
    const float of_side = left ? step.mma_slope : -step.mma_slope, unit = of_side * (1.0f / kUnit);
    const std::uint32_t of_slope = two_parts(-of_side) & slope_mask;
    a[0] = (two_parts(unit * distance) & keys_mask) | of_slope;
    a[1] = (two_parts(unit * (distance + 8)) & keys_mask) | of_slope;
    a[2] = a[3] = 0;
    fence_operand(a);
    return a;
  }

  /// After the wait, until which MMAs read operand a: completes scores.
  __device__ __forceinline__ void complete(const SlopedStep& step, float (&scores)[kScores]) {
    fence_operand(a);
    if (!mixed) return;
    if (step.mma_slope == slope) {
      fold(scores, left_alone || uniform(step.apart) + key < kLeftUntil);
    } else {
      add_distances(scores);
    }
  }

 private:
  static __device__ __forceinline__ std::uint32_t two_parts(float x) {
    const float high = unpack<Element>(pack<Element>(x, 0)).x;
    return pack<Element>(high, x - high);
  }
  /// Number of a lane's first query, from the middle of the tile on.
  static __device__ __forceinline__ float first_query() { return static_cast<float>(lane_column(lane_index()) - kQueryTile / 2); }

  /// Turns pairs on the other side than the MMA's.
  __device__ __forceinline__ void fold(float (&scores)[kScores], bool left) const {
    constexpr float kSpan = 128;  // more than any distance here: a saturated number is a hinge at 0
    const float side = left ? -1 : 1, turn = -2 * kSpan * slope;
    float from[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) from[r] = side * (first_query() - (distance + static_cast<float>(8 * r))) * (1 / kSpan);
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const float beyond = __saturatef(fmaf(side, static_cast<float>(column_of(i)) / kSpan, from[row_of(i)]));
      scores[i] = fmaf(beyond, turn, scores[i]);
    }
  }
  __device__ __forceinline__ void add_distances(float (&scores)[kScores]) const {
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const float from = first_query() - (distance + static_cast<float>(8 * row_of(i)));
      scores[i] = fmaf(-slope, fabsf(static_cast<float>(column_of(i)) + from), scores[i]);
    }
  }

  static constexpr int kLeftUntil = kQueryTile / 2 - 8;  // keys this far behind the first diagonal are added as those on its left

  int key = 0, middle_key = 0;
  float slope = 0, distance = 0;  // distance: from the diagonal of the middle query to the lane's first key
  bool left_alone = false, mixed = false;
  std::uint32_t keys_mask = 0, slope_mask = 0;  // of columns of operand a
  std::uint32_t a[4];
};

}  // namespace fovea::gpu::sm90::attention_backward
