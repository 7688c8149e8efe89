// SPDX-License-Identifier: Apache-2.0
/// One row of a work tile by scalar arithmetic, whose queries and keys are wider than
/// gpu/cuda/common/exact_row.cuh has them.
#pragma once

#include "gpu/cuda/sm90/dense/exact_row.cuh"
#include "gpu/cuda/sm90/thread.cuh"
#include "gpu/cuda/sm90/wide_attention/config.hpp"

namespace fovea::gpu::sm90::dense {

template <class Element, int kRow, bool kTransform>
struct ExactRow<wide_attention::Config<Element, kRow, kTransform>> {
  using Config = wide_attention::Config<Element, kRow, kTransform>;
  const Params& params;
  const WorkTile& work;
  RowPlace at;
  int key_tile;

  static constexpr int kColumns = Config::kHeadDimV / 32;

  /// Computes the weighted mean of the values that the row sees in the work tile, by a whole warp.
  __device__ void operator()(ScoreScale scale, float (&columns)[kColumns]) const {
    const auto* q = static_cast<const Element*>(params.q.data) + row_offset(params.q, work, work.q_begin + at.token, at.head);
    const TensorKeys<Element, Params> row_of(params, work, at.head / params.heads_per_kv);
    const WorkTile::Keys seen = work.own_keys_of(at.token, key_tile);
    const int lane = lane_index();
    SerialSoftmax<Warp> softmax{scale.log2};
#pragma unroll
    for (float& x : columns) x = 0;
    for (int key = seen.begin; key < seen.end; ++key) {
      const KeyRow<Element> row = row_of(key);
      float product = 0;
      for (int column = lane; column < params.head_dim_qk; column += 32) product = fmaf(to_f32(q[column]), to_f32(row.k[column]), product);
      product = Warp::sum_of_warp(product);
      const float weight = softmax(kTransform ? transformed(params, product) : product, columns);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int column = 32 * c + lane;
        if (column < params.head_dim_v) columns[c] = fmaf(weight, to_f32(row.v[column]), columns[c]);
      }
    }
#pragma unroll
    for (float& x : columns) x /= softmax.sum;
  }
};

}  // namespace fovea::gpu::sm90::dense
