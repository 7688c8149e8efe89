// SPDX-License-Identifier: Apache-2.0
/// One row of a work tile by scalar arithmetic, which multiplies no value that the row does not see. A product of tiles cannot: where a
/// value that only other rows see is not finite, this is the way back.
#pragma once

#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/sm90/attention/params.hpp"
#include "gpu/cuda/sm90/attention/storage.cuh"

namespace fovea::gpu::sm90::attention {

/// Config::kTransform: what becomes of a score before the mask.
__device__ inline float transformed(const Params& params, float score) {
  if (params.softcap == 0) return score * params.scale;
  // tanh(x) = 1 - 2 / (exp(2 x) + 1)
  return params.softcap * (1 - __fdividef(2, Warp::exp2(score * params.inv_softcap) + 1));
}

template <class Element, bool kTransform>
struct ExactRow {
  const Params& params;
  const WorkTile& work;
  int token, head, key_tile;

  static constexpr int kColumns = 256 / 32;  // of a lane, at most

  /// Column 32 c + lane of sum_j 2^((s_j - maximum) * scale_log2) v_j, over the keys of the work tile that the row sees; by a whole warp.
  __device__ void operator()(float maximum, float scale_log2, float (&columns)[kColumns]) const {
    const int kv_head = head / params.heads_per_kv;
    const Element *q = row(params.q, work.q_begin + token, head), *k = row(params.k, work.k_begin, kv_head),
                  *v = row(params.v, work.k_begin, kv_head);
    const int begin = max(max(token + work.low, 0), work.first * key_tile);
    const int end = min(min(token + work.high + 1, work.seq_k), work.last * key_tile);
#pragma unroll
    for (float& x : columns) x = 0;
    for (int key = begin; key < end; ++key) {
      float score = 0;
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
        score = fmaf(at(q, c, params.head_dim_qk), at(k + key * params.k.strides.row, c, params.head_dim_qk), score);
      score = Warp::sum_of_warp(score);
      if (kTransform) score = transformed(params, score);
      const float weight = Warp::exp2((score - maximum) * scale_log2);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) columns[c] = fmaf(weight, at(v + key * params.v.strides.row, c, params.head_dim_v), columns[c]);
    }
  }

 private:
  /// Element 32 c + lane of a row, 0 past its end.
  static __device__ float at(const Element* row, int c, int columns) {
    const int column = c * 32 + static_cast<int>(threadIdx.x % 32);
    return column < columns ? static_cast<float>(row[column]) : 0.0f;
  }
  __device__ const Element* row(const Rows& rows, int token_row, int of_head) const {
    const detail::RowStrides& strides = rows.strides;
    return static_cast<const Element*>(rows.data) + work.batch * strides.batch + token_row * strides.row + of_head * strides.head;
  }
};

}  // namespace fovea::gpu::sm90::attention
