// SPDX-License-Identifier: Apache-2.0
/// One row of a work tile by scalar arithmetic: see gpu/cuda/common/exact_row.cuh.
#pragma once

#include "gpu/cuda/common/exact_row.cuh"
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

  static constexpr int kColumns = gpu::ExactRow<Element>::kColumns;

  /// Over the keys of the work tile that the row sees; by a whole warp.
  __device__ void operator()(float maximum, float scale_log2, float (&columns)[kColumns]) const {
    const int kv_head = head / params.heads_per_kv;
    const gpu::ExactRow<Element> exact{row(params.q, work.q_begin + token, head),
                                       row(params.k, work.k_begin, kv_head),
                                       row(params.v, work.k_begin, kv_head),
                                       params.k.strides.row,
                                       params.v.strides.row,
                                       params.head_dim_qk,
                                       params.head_dim_v};
    const int begin = max(max(token + work.low, 0), work.first * key_tile);
    const int end = min(min(token + work.high + 1, work.seq_k), work.last * key_tile);
    exact(
        begin, end, maximum, scale_log2, [&](float score) { return kTransform ? transformed(params, score) : score; }, columns);
  }

 private:
  __device__ const Element* row(const Rows& rows, int token_row, int of_head) const {
    const detail::RowStrides& strides = rows.strides;
    return static_cast<const Element*>(rows.data) + work.batch * strides.batch + token_row * strides.row + of_head * strides.head;
  }
};

}  // namespace fovea::gpu::sm90::attention
