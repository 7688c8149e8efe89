// SPDX-License-Identifier: Apache-2.0
/// Stores of a gradient. Rows that are not finite are flagged, and `finish` recomputes them.
#pragma once

#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/portable/attention_backward/load.cuh"

namespace fovea::gpu::portable::attention_backward {

/// Two neighbours. `aligned`: to 4 bytes.
__device__ __forceinline__ void store_pair(std::uint16_t* to, std::uint32_t pair, bool aligned) {
  if (aligned) {
    *reinterpret_cast<std::uint32_t*>(to) = pair;
  } else {
    to[0] = static_cast<std::uint16_t>(pair);
    to[1] = static_cast<std::uint16_t>(pair >> 16);
  }
}

template <class Config>
class Store {
 public:
  __device__ Store(const Params& params_, const Storage<Config>& storage_) : params(params_), work(storage_.work) {}

  /// `sums`: of rows from `warp_row` on, and of columns from `first_column` on.
  template <int kSums>
  __device__ __forceinline__ void operator()(const float (&sums)[Config::kBlocks][kSums], const Tensor& to, int columns, float factor,
                                             int warp_row, int first_column = 0) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int begin = kQueries ? work.sequence.q_begin : work.sequence.k_begin;
    const int first_row = work.row + warp_row + lane_row(lane);
    auto* at = static_cast<std::uint16_t*>(const_cast<void*>(to.data)) + work.sequence.offset(to.strides, begin, first_row, work.head);
#pragma unroll
    for (int b = 0; b < Config::kBlocks; ++b) {
#pragma unroll
      for (int r = 0; r < 2; ++r, at += 8 * to.strides.row) {
        const int row = first_row + 16 * b + 8 * r;
        if (row >= work.rows) continue;
        float zero = 0;
#pragma unroll
        for (int i = 2 * r; i < kSums; i += 4) {
          const int column = first_column + column_of(i) + lane_column(lane);
          zero = fmaf(sums[b][i], 0.0f, fmaf(sums[b][i + 1], 0.0f, zero));
          if (column < columns) store_pair(at + column, pack<Element>(sums[b][i] * factor, sums[b][i + 1] * factor), to.aligned);
        }
        if (params.leaks && zero != 0) flag(row);
      }
    }
  }

 private:
  using Element = typename Config::Element;
  static constexpr bool kQueries = Config::kRowsAreQueries;

  __device__ void flag(int row) const {
    if (kQueries) {
      params.dq_not_finite[std::int64_t{work.head} * params.query_tiles + work.sequence.query_tile + row / kQueryTile] = 1;
    } else {
      params.dkv_not_finite[blockIdx.x] = 1;
    }
  }

  const Params& params;
  const Work& work;
};

}  // namespace fovea::gpu::portable::attention_backward
