// SPDX-License-Identifier: Apache-2.0
/// One row of attention by scalar arithmetic over visible keys alone. An MMA multiplies masked values by 0, which makes NaN
/// of values that are not finite; such rows are recomputed here.
///
/// The row has a softmax of its own. Its scores are rounded otherwise than those of an MMA, so large ones differ by more than an exponent
/// bears: weights relative to the MMA's maximum could be anything.
#pragma once

#include <cmath>
#include <cstdint>

#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/element.cuh"
#include "gpu/cuda/common/warp.cuh"

namespace fovea::gpu {

/// Addresses of a key and its value; null for a key that is NaN.
template <class Element, class ValueElement = Element>
struct KeyRow {
  const Element* k;
  const ValueElement* v;
};

/// A row without a packed mask.
struct AllShown {
  __device__ constexpr bool operator()(int) const { return true; }
};

template <class Element>
struct ExactRow {
  const Element* q;                          // the row
  int head_dim_qk, head_dim_v;               // both at most 256
  static constexpr int kColumns = 256 / 32;  // of a lane, at most

  /// Column 32 c + lane of sum_j p_j v_j / sum_j p_j, where p_j = 2^(s_j * scale_log2), over the keys from `begin` to `end`; by a whole
  /// warp. `row_of(key)`: its KeyRow. `transformed(product, key)`: the score. `shown(key)`: whether the row sees it.
  template <class RowOf, class Transform, class Shown = AllShown>
  __device__ void operator()(int begin, int end, float scale_log2, const RowOf& row_of, const Transform& transformed,
                             float (&columns)[kColumns], const Shown& shown = {}) const {
    SerialSoftmax<Warp> softmax{scale_log2};
#pragma unroll
    for (float& x : columns) x = 0;
    for (int key = begin; key < end; ++key) {
      if (!shown(key)) continue;
      const auto row = row_of(key);
      float score = 0;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) score = fmaf(at(q, c, head_dim_qk), at(row.k, c, head_dim_qk), score);
      const float weight = softmax(transformed(Warp::sum_of_warp(score), key), columns);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) columns[c] = fmaf(weight, at(row.v, c, head_dim_v), columns[c]);
    }
#pragma unroll
    for (float& x : columns) x /= softmax.sum;
  }

 private:
  /// Element 32 c + lane of a row, 0 past its end.
  template <class T>
  static __device__ float at(const T* row, int c, int columns) {
    const int column = c * 32 + static_cast<int>(threadIdx.x % 32);
    if (row == nullptr) return NAN;
    return column < columns ? to_f32(row[column]) : 0.0f;
  }
};

}  // namespace fovea::gpu
