// SPDX-License-Identifier: Apache-2.0
/// A row with ALiBi, a bias or dropout by scalar arithmetic, as gpu/cuda/common/exact_row.cuh has it without.
#pragma once

#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/element.cuh"
#include "gpu/cuda/common/score_bias.cuh"
#include "gpu/cuda/common/warp.cuh"

namespace fovea::gpu::portable::attention {

/// Column 32 c + lane of a lane.
inline constexpr int kRowColumns = 256 / 32;

/// Sum of p_j z_j v_j over the sum of p_j, of keys from `begin` to `end`, by a whole warp. z is what dropout multiplies weights by.
/// A key whose score is minus infinity is left out. `row_of(key)` has the key's and the value's address, `score_of(product, key)` the
/// score, `share_of(key)` z.
template <class Element, class RowOf, class ScoreOf, class ShareOf>
struct ExactBiasedRow {
  const Element* q;
  int head_dim_qk, head_dim_v;
  const RowOf& row_of;
  const ScoreOf& score_of;
  const ShareOf& share_of;

  __device__ void operator()(int begin, int end, float scale_log2, float (&columns)[kRowColumns]) const {
    SerialSoftmax<Warp> softmax{scale_log2};
#pragma unroll
    for (float& x : columns) x = 0;
    for (int key = begin; key < end; ++key) {
      const auto row = row_of(key);
      float product = 0;
#pragma unroll
      for (int c = 0; c < kRowColumns; ++c) product = fmaf(at(q, c, head_dim_qk), at(row.k, c, head_dim_qk), product);
      const float score = score_of(Warp::sum_of_warp(product), key);
      if (score == -INFINITY) continue;
      const float weight = softmax(score, columns) * share_of(key);
#pragma unroll
      for (int c = 0; c < kRowColumns; ++c) columns[c] = fmaf(weight, at(row.v, c, head_dim_v), columns[c]);
    }
#pragma unroll
    for (float& x : columns) x /= softmax.sum;
  }

 private:
  static __device__ float at(const Element* row, int c, int columns) {
    const int column = c * 32 + static_cast<int>(threadIdx.x % 32);
    return column < columns ? to_f32(row[column]) : 0.0f;
  }
};

}  // namespace fovea::gpu::portable::attention
