// SPDX-License-Identifier: Apache-2.0
/// A quarter of one row of attention by scalar arithmetic over visible keys alone, as
/// gpu/cuda/common/exact_row.cuh has whole rows.
#pragma once

#include <cmath>

#include "gpu/common/score_transform.cuh"
#include "gpu/cuda/common/element.cuh"
#include "gpu/cuda/portable/wide_attention/work.cuh"

namespace fovea::gpu::portable::wide_attention {

template <class Config>
struct ExactColumns {
  using Element = typename Config::Element;
  static constexpr int kCount = Config::kColumns / 32;  // columns of a lane

  const Params& params;
  const WorkTile& work;
  int first;  // column

  /// Columns first + 32 c + lane of the weighted mean of the values that a row sees; by a whole
  /// warp.
  __device__ void operator()(RowPlace at, const ScoreTransform<Warp>& transform, float (&columns)[kCount]) const {
    const Element* q = row_of_head<Element>(params.q, work.batch, work.q_begin + at.token, at.head);
    const WorkTile::Keys seen = work.own_keys_of(at.token, Config::kKeyTile);
    SerialSoftmax<Warp> softmax{transform.scale_log2};
#pragma unroll
    for (float& x : columns) x = 0;
    for (int key = seen.begin; key < seen.end; ++key) {
      const Element* k = key_row<Config>(params, work, params.k, work.keys, key, kNaNRow);
      const Element* v = key_row<Config>(params, work, params.v, work.values, key, kZeroRow);
      float product = 0;
      for (int column = lane(); column < params.head_dim_qk; column += 32) product = fmaf(to_f32(q[column]), to_f32(k[column]), product);
      const float weight = softmax(transform(Warp::sum_of_warp(product)), columns);
#pragma unroll
      for (int c = 0; c < kCount; ++c) {
        const int column = first + 32 * c + lane();
        if (column < params.head_dim_v) columns[c] = fmaf(weight, to_f32(v[column]), columns[c]);
      }
    }
#pragma unroll
    for (float& x : columns) x /= softmax.sum;
  }

 private:
  static __device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
};

}  // namespace fovea::gpu::portable::wide_attention
