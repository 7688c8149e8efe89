// SPDX-License-Identifier: Apache-2.0
/// One row by scalar arithmetic over visible keys alone, in one thread. An MMA multiplies masked values by
/// 0, which makes NaN of values that are not finite.
#pragma once

#include "gpu/common/softmax.cuh"
#include "gpu/cuda/sm100/attention/elements.cuh"
#include "gpu/cuda/sm100/attention/work.cuh"

namespace fovea::gpu::sm100::attention {

/// The row of `token` in the CTA's work tile.
template <class Element>
class ExactRow {
 public:
  __device__ ExactRow(const Params& params_, const WorkTile& work_, int token_) : params(params_), work(work_), token(token_) {}

  /// Computes results, a few columns at a time, times `share`.
  __device__ __forceinline__ void operator()(Element* out, float share) const {
    for (int first = 0; first < params.head_dim_v; first += kColumns) {
      float columns[kColumns] = {};
      const float sum = attend(first, columns);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) out[first + c] = static_cast<Element>(columns[c] / sum * share);
    }
  }

 private:
  static constexpr int kColumns = 8;  // head dims are multiples of it

  /// Adds weighted values to `columns`, from column `first` on. Returns the sum of the weights.
  __device__ __forceinline__ float attend(int first, float (&columns)[kColumns]) const {
    const int kv_head = work.head / params.heads_per_kv;
    const Element *q = row_of(params.q, work.q_begin + token, work.head), *k = row_of(params.k, work.k_begin, kv_head),
                  *v = row_of(params.v, work.k_begin, kv_head) + first;
    const WorkTile::Keys seen = work.keys_of(token);
    SerialSoftmax<OneRow> softmax{params.scale_log2};
    for (std::int64_t key = seen.begin; key < seen.end; ++key) {
      const Element *of_key = k + key * params.k.strides.row, *of_value = v + key * params.v.strides.row;
      float score = 0;
      for (int i = 0; i < params.head_dim_qk; ++i) score = fmaf(static_cast<float>(q[i]), static_cast<float>(of_key[i]), score);
      const float weight = softmax(score, columns);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) columns[c] = fmaf(weight, static_cast<float>(of_value[c]), columns[c]);
    }
    return softmax.sum;
  }

  __device__ const Element* row_of(const sm90::ClippedRows& rows, std::int64_t row, int head) const {
    const detail::RowStrides& strides = rows.strides;
    return static_cast<const Element*>(rows.data) + work.batch * strides.batch + row * strides.row + head * strides.head;
  }

  const Params& params;
  const WorkTile& work;
  const int token;
};

}  // namespace fovea::gpu::sm100::attention
