// SPDX-License-Identifier: Apache-2.0
/// ALiBi of a consumer: minus slope times the distance of a key from the diagonal of its row.
///
/// On one side of the diagonal it is linear in the key. One more MMA adds it to a tile of scores: operand a is the slope as a sum of
/// three elements, operand b the number of each key, counted from the middle of its tile. Both are exact. The rest is a number for each
/// row and tile (`shift`), which the softmax takes into its maximum.
#pragma once

#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/common/work_tile.cuh"
#include "gpu/cuda/sm90/dense/alibi_terms.cuh"
#include "gpu/cuda/sm90/dense/biased_gemm.cuh"
#include "gpu/cuda/sm90/dense/exact_row.cuh"
#include "gpu/cuda/sm90/thread.cuh"

namespace fovea::gpu::sm90::dense {

/// In the place of Alibi.
struct NoAlibi {};

/// Operand b, in shared memory. A slope is a sum of three elements.
template <class Element, int kKeys>
struct KeyNumbers {
  NumberTile<Element, kKeys, 0, 3> key_numbers;
};

/// A slope as a sum of three elements, as a lane has it of operand a: rows are equal.
template <class Element>
__device__ __forceinline__ std::uint32_t slope_operand(float slope) {
  const auto rounded = [](float x) {
    Element near;
    from_f32(x, near);
    return to_f32(near);
  };
  const float high = rounded(slope), middle = rounded(slope - high), low = slope - high - middle;
  const int quarter = lane_index() % 4;
  const std::uint32_t pair = quarter == 0 ? pack<Element>(high, middle) : pack<Element>(low, 0.0f);
  return quarter < 2 ? pair : 0;
}

/// The bias of a warp, whose 16 rows are one head's. Key tiles are numbered; the diagonals of all rows are in few of them.
template <class Config>
class Alibi {
 public:
  using Element = typename Config::Element;
  using Params = typename Config::Params;
  static constexpr int kTile = Config::kKeyTile, kScores = kTile / 2;

  /// At a work tile. `row`: the warp's first row in the query tile.
  __device__ __forceinline__ void begin(const Params& params, const WorkTile& work, int row) {
    const float natural = slope_of(params, work);
    const int offset = diagonal_offset(params, work);
    slope = natural * params.alibi.units_of_slope;
    first = uniform(work.token + row + offset);
    const bool is_linear = !params.alibi.natural && fabsf(natural) <= kMostNatural && fabsf(slope) <= kMostSlope;
    operand = is_linear ? slope_operand<Element>(slope) : 0;
    constexpr unsigned kColumns = kTile;
    const unsigned columns = kFar * kColumns + static_cast<unsigned>(first);  // above 0, so that divisions round down
    const auto tile_of = [](unsigned column) { return static_cast<int>(column / kColumns) - kFar; };
    left_until = tile_of(columns - (kColumns / 2 - 14));
    mixed_from = tile_of(columns + 1);
    mixed_until = tile_of(columns + 15 + kColumns - 1);
    if (work.high <= offset) left_until = mixed_from = mixed_until = kNever;  // keys on the right are hidden
    if (!is_linear) mixed_from = -kNever, mixed_until = kNever;
  }

  /// Operand a of a tile.
  __device__ __forceinline__ std::uint32_t (&operand_of(int tile))[4] {
    a[0] = a[1] = operand ^ (is_right(tile) ? 0x80008000 : 0);
    a[2] = a[3] = 0;
    fence_operand(a);
    return a;
  }
  /// After the wait: until then MMAs read it.
  __device__ __forceinline__ void release_operand() { fence_operand(a); }

  /// Whether a tile has diagonals of these rows, or the bias is not linear.
  __device__ __forceinline__ bool is_mixed(int tile) const { return tile >= mixed_from && tile < mixed_until; }

  /// Finds how much less than they should be the scores of the lane's two rows are, after the MMAs of a tile.
  __device__ __forceinline__ void find_shift(int tile, float (&shift)[2]) const {
    const float distance = middle(tile), step = is_right(tile) ? slope : -slope;
    shift[0] = step * distance;
    shift[1] = step * (distance + 8);
  }

  /// Completes the scores of a mixed tile.
  __device__ __forceinline__ void complete(const Params& params, float (&scores)[kScores], int tile, float (&shift)[2]) const {
    const float row = middle(tile) + kTile / 2;  // column of the lane's first diagonal
    if (is_nonlinear()) return add_distances(params, scores, row, shift);
    const bool left = !is_right(tile);
    const int lowest = first - tile * kTile;
    if (!(left ? kTile / 2 - 1 <= lowest : 0 >= lowest + 15)) fold(scores, 0, row, left);
    if (!(left ? kTile - 1 <= lowest : kTile / 2 >= lowest + 15)) fold(scores, 1, row, left);
  }

  /// Whether the tile is on the right of the diagonals.
  __device__ __forceinline__ bool is_right(int tile) const { return tile > left_until; }

 private:
  /// Up to these slopes, scores in a tile differ so little that their sums keep enough digits, and parts of a slope are finite.
  static constexpr float kMostNatural = 0.5f, kMostSlope = 1 << 14;
  static constexpr int kFar = (1 << 30) / kTile + 2, kNever = 1 << 30;  // lengths are below 2^30

  /// From the middle of a tile to the lane's first diagonal.
  __device__ __forceinline__ float middle(int tile) const {
    return static_cast<float>(first + lane_index() / 4 - kTile / 2 - tile * kTile);
  }
  __device__ __forceinline__ bool is_nonlinear() const { return mixed_from == -kNever; }

  /// Turns keys of half of a tile that are on the other side.
  __device__ __forceinline__ void fold(float (&scores)[kScores], int half, float row, bool left) const {
    constexpr float kSpan = 2 * kTile;  // more than any distance here: a saturated number is a hinge at 0
    const float side = left ? 1 : -1, turn = -2 * kSpan * slope;
    const float column = static_cast<float>(lane_column(lane_index()));
    float from[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) from[r] = side * (column - row - static_cast<float>(8 * r)) * (1 / kSpan);
#pragma unroll
    for (int i = half * (kScores / 2); i < (half + 1) * (kScores / 2); ++i) {
      const float beyond = __saturatef(fmaf(side, static_cast<float>(column_of(i)) / kSpan, from[row_of(i)]));
      scores[i] = fmaf(beyond, turn, scores[i]);
    }
  }

  /// The whole bias, score by score.
  __device__ __forceinline__ void add_distances(const Params& params, float (&scores)[kScores], float row, float (&shift)[2]) const {
    if (params.alibi.natural) make_natural(params, scores);
    const float column = static_cast<float>(lane_column(lane_index()));
    shift[0] = shift[1] = 0;
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const float distance = static_cast<float>(column_of(i)) + (column - row - static_cast<float>(8 * row_of(i)));
      scores[i] = fmaf(-slope, fabsf(distance), scores[i]);
    }
  }
  static __device__ __forceinline__ void make_natural(const Params& params, float (&scores)[kScores]) {
    if (params.softcap == 0) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) scores[i] *= params.scale;
    } else {
#pragma unroll
      for (int i = 0; i < kScores; ++i) scores[i] = params.softcap * tanh_by_exp2<Warp>(scores[i] * params.inv_softcap);
    }
  }

  float slope = 0;
  int first = 0;  // the diagonal of the warp's first row
  std::uint32_t operand = 0, a[4];
  int left_until = 0;                   // up to this tile, the MMA is for keys on the left of the diagonals
  int mixed_from = 0, mixed_until = 0;  // tiles with diagonals
};

/// The softmax of scores that are `shift` of their row less than they should be. Key tiles run from the last to the first, so on the right
/// of the diagonals each has larger scores than the one before: there the maximum of a row that follows goes ahead, by at most 2^kAhead.
template <int kScores, int kAhead>
struct AlibiSoftmax : OnlineSoftmax<Warp, kScores> {
  using Base = OnlineSoftmax<Warp, kScores>;
  using Base::maximum, Base::sum, Base::rescale, Base::quick;  // quick: of the scores without `shift`

  /// `rises`: the next tile has larger scores.
  __device__ __forceinline__ bool operator()(float (&scores)[kScores], const float (&shift)[2], bool rises, float scale, float zero) {
    float largest[2], offset[2];
    this->find_largest(scores, largest);
    bool outgrown = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float top = maximum[r] - shift[r];
      offset[r] = top * scale;
      outgrown |= ((largest[r] - top) * scale > kSlack) | !is_plain(offset[r]);
    }
    if (quick) outgrown |= fminf(offset[0], offset[1]) < -kSlack;
    const bool grown = Warp::any(outgrown);
    if (grown) grow(scores, shift, rises, scale, offset);
    const float factor[1] = {scale};
    this->exponentiate(scores, factor, offset, zero);
    return grown;
  }

 private:
  __device__ __forceinline__ void grow(float (&scores)[kScores], const float (&shift)[2], bool rises, float scale, float (&offset)[2]) {
    float largest[2], base[2];
    quick = false;
    this->find_largest(scores, largest);  // the largest of scores below 0, too
    const float most_ahead = rises ? __fdividef(kAhead, scale) : 0;
    bool slow = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float found = Warp::largest_of_row(largest[r]) + shift[r];
      const bool follows = (found - maximum[r]) * scale > kSlack;
      const float to = follows ? found + fminf(fmaxf(-shift[r], 0), most_ahead) : maximum[r], top = to - shift[r];
      rescale[r] = rescale_factor<Warp>(maximum[r], to, scale);
      sum[r] *= rescale[r];
      maximum[r] = to;
      offset[r] = top * scale;
      const bool plain = is_plain(offset[r]);
      slow |= !plain | (offset[r] < -kSlack);
      base[r] = plain | (to == -INFINITY) ? 0 : top;
      offset[r] = plain ? offset[r] : 0;
    }
    quick = !Warp::any(slow);
#pragma unroll
    for (int i = 0; i < kScores; ++i) scores[i] -= base[row_of(i)];
  }
};

}  // namespace fovea::gpu::sm90::dense
