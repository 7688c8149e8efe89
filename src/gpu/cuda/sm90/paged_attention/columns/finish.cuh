// SPDX-License-Identifier: Apache-2.0
/// The end of a CTA of few columns: normalisation, lse, stores, and rows that are not finite. It rounds as dense::Epilogue does.
#pragma once

#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/exact_row.cuh"
#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/sm90/dense/exact_row.cuh"
#include "gpu/cuda/sm90/paged_attention/columns/cell.cuh"
#include "gpu/cuda/sm90/paged_attention/load.cuh"

namespace fovea::gpu::sm90::paged_attention::columns {

/// Factor of scores in the softmax.
__device__ inline float log2_scale(const Params& params) { return params.transform ? kLog2e : params.scale_log2; }

/// By a warp, which has 8 kGroups columns of all rows.
template <class Element, int kGroups>
class Finish {
 public:
  __device__ Finish(const Params& params_, const Cell& cell_, float2 maximum_, float2 sum_)
      : params(params_),
        cell(cell_),
        lane(static_cast<int>(threadIdx.x) % 32),
        maximum{maximum_.x, maximum_.y},
        sum{Warp::sum_of_row(sum_.x), Warp::sum_of_row(sum_.y)} {}

  __device__ void operator()(const float (&out)[4 * kGroups]) {
    const float scale = log2_scale(params);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane_row(lane) + 8 * r;
      if (row >= cell.rows) continue;
      const RowPlace at = cell.place(row);
      factor[r] = normaliser(at, sum[r], maximum[r] * scale);
      store(out, r, at);
      if (params.lse != nullptr && blockIdx.x == 0 && lane % 4 == 0)
        params.lse[cell.work.offset(params.lse_strides, at)] = fmaf(maximum[r], scale, Warp::log2(sum[r])) * kLn2;
    }
    // Values that a row does not see, or a sink that hides all keys, give values the weight 0, and 0 times NaN is NaN.
    const WorkTile& work = cell.work;
    if (work.full_first > work.first || work.full_last < work.last || params.sink != nullptr) recompute(out);
  }

 private:
  __device__ float normaliser(RowPlace at, float of, float base) const {
    if (params.sink != nullptr) {
      const float sink = exp2f(fmaf(params.sink[at.head], kLog2e, -base));
      return of == 0 ? 0 : 1 / (of + sink);
    }
    return of == 0 ? 0 : __fdividef(1, of);
  }

  __device__ Element* result_of(RowPlace at) const {
    return static_cast<Element*>(const_cast<void*>(params.out.data)) + cell.work.offset(params.out.strides, at);
  }

  __device__ void store(const float (&out)[4 * kGroups], int r, RowPlace at) const {
    Element* to = result_of(at);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int column = (static_cast<int>(blockIdx.x) * kGroups + group) * 8 + lane_column(lane);
      const float* x = out + 4 * group + 2 * r;
      if (column < params.head_dim_v) *reinterpret_cast<std::uint32_t*>(to + column) = pack<Element>(x[0] * factor[r], x[1] * factor[r]);
    }
  }

  /// The last CTA of the cell computes the rows again that are not finite in the columns of some CTA.
  __device__ void recompute(const float (&out)[4 * kGroups]) const {
    int* state = cell.state();
    unsigned rows = rows_of(lanes_not_finite(out, 0)) | rows_of(lanes_not_finite(out, 1)) << 8;
    rows &= (1u << cell.rows) - 1;
    if (rows != 0 && lane == 0) atomicOr(state, static_cast<int>(rows));
    __threadfence();
    __syncwarp();
    const int before = lane == 0 ? atomicAdd(state + 1, 1) : 0;
    if (__shfl_sync(~0u, before, 0) + 1 < static_cast<int>(gridDim.x)) return;
    __threadfence();
    rows = static_cast<unsigned>(__shfl_sync(~0u, lane == 0 ? atomicOr(state, 0) : 0, 0));
    for (; rows != 0; rows &= rows - 1) {
      const int row = __ffs(static_cast<int>(rows)) - 1;
      recompute_row(row, __shfl_sync(~0u, row < 8 ? factor[0] * sum[0] : factor[1] * sum[1], row % 8 * 4));
    }
  }
  /// The rows of a ballot: a bit for each four lanes.
  static __device__ unsigned rows_of(unsigned lanes) {
    unsigned rows = 0;
#pragma unroll
    for (int row = 0; row < 8; ++row) rows |= (lanes >> 4 * row & 0xf) != 0 ? 1u << row : 0;
    return rows;
  }

  __device__ __noinline__ void recompute_row(int row, float weight) const {
    const RowPlace at = cell.place(row);
    const auto* q = static_cast<const Element*>(params.q.data) + cell.work.offset(params.q.strides, at);
    const gpu::ExactRow<Element> exact{q, params.head_dim_qk, params.head_dim_v};
    const PagedKeys<Element> row_of(params, cell.work, cell.kv_head);
    const WorkTile::Keys seen = cell.work.keys_of(at.token);
    const auto score_of = [&](float score, int) { return params.transform ? dense::transformed(params, score) : score; };
    float columns[exact.kColumns];
    exact(seen.begin, seen.end, log2_scale(params), row_of, score_of, columns);
#pragma unroll
    for (int c = 0; c < exact.kColumns; ++c) {
      const int column = c * 32 + lane;
      if (column < params.head_dim_v) from_f32(weight == 0 ? 0 : columns[c] * weight, result_of(at)[column]);
    }
  }

  const Params& params;
  const Cell cell;  // a copy, whose address leaves registers
  const int lane;
  const float maximum[2], sum[2];
  float factor[2] = {0, 0};
};

}  // namespace fovea::gpu::sm90::paged_attention::columns
