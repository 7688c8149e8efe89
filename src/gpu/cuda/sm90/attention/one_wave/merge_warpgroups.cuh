// SPDX-License-Identifier: Apache-2.0
/// The epilogue where two warpgroups share the keys of 64 rows. Each leaves its results in shared
/// memory; then each warp merges and stores whole rows.
#pragma once

#include "gpu/cuda/sm90/attention/one_wave/epilogue.cuh"

namespace fovea::gpu::sm90::one_wave {

template <class Config>
class MergeWarpgroups {
 public:
  using Softmax = typename Math<Config>::Softmax;
  static constexpr int kOut = Math<Config>::kOut;

  /// `work`: of the CTA.
  __device__ MergeWarpgroups(const Params& params_, Storage<Config>& storage_, const WorkTile& work_)
      : params(params_), storage(storage_), work(work_), log2_scale(score_scale<Config>(params_).log2) {}

  /// Leaves the results of a warpgroup, relative to 2^softmax.base().
  __device__ __forceinline__ void leave(const Softmax& softmax, const float (&out)[kOut], int key_group) const {
    Partial<Config>& partial = storage.partial[key_group];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = group_row(r);
      if (lane_index() % 4 == 0) partial.stats[row] = {softmax.maximum[r], softmax.sum[r]};
      float* to = partial.out[row] + lane_column(lane_index());
#pragma unroll
      for (int i = 2 * r; i < kOut; i += 4) *reinterpret_cast<float2*>(to + column_of(i)) = {out[i], out[i + 1]};
    }
  }

  /// Merges and stores the rows of a warp.
  __device__ __forceinline__ void store() const {
    const int first = uniform(thread_index() / 32) * kRows;
    // Two lanes share a row's statistics, one for each warpgroup. Lanes from 16 on repeat them.
    const int lane = lane_index() % (2 * kRows), row = first + lane / 2;
    const RowPlace at = work.place(row, params.packed_shift);
    const float2 stats = storage.partial[lane % 2].stats[row];
    const float maximum = fmaxf(stats.x, __shfl_xor_sync(~0u, stats.x, 1)), base = maximum * log2_scale;
    const float rescale = rescale_factor<Warp>(stats.x, maximum, log2_scale);
    float sum = stats.y * rescale;
    sum += __shfl_xor_sync(~0u, sum, 1);
    const float factor = normaliser(params, at, sum, base), weight = rescale * factor;
    if (lane == lane_index() && lane % 2 == 0) store_lse(params, work, at, base + Warp::log2(sum));
    Columns columns[2 * kRows];
#pragma unroll
    for (int i = 0; i < 2 * kRows; ++i) {
      columns[i] = *reinterpret_cast<const Columns*>(&storage.partial[i % 2].out[first + i / 2][lane_index() * kColumns]);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float weights[2] = {__shfl_sync(~0u, weight, 2 * i), __shfl_sync(~0u, weight, 2 * i + 1)};
      Columns result{};
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        result.x[c] = fmaf(columns[2 * i].x[c], weights[0], result.x[c]);
        result.x[c] = fmaf(columns[2 * i + 1].x[c], weights[1], result.x[c]);
      }
      store_row(first + i, result, __shfl_sync(~0u, factor * sum, 2 * i));
    }
  }

 private:
  using Element = typename Config::Element;
  static constexpr int kRows = Config::kRowTile / Config::kWarps;  // of a warp
  static constexpr int kColumns = Config::kHeadDimV / 32;          // of a lane
  static_assert(kRows == 8);

  struct alignas(4 * kColumns) Columns {
    float x[kColumns];
  };

  /// Stores a row by a whole warp. `share`: of the weighted mean of its values.
  __device__ __forceinline__ void store_row(int row, const Columns& result, float share) const {
    const RowPlace at = work.place(row, params.packed_shift);
    if (at.token >= work.seq_q) return;
    auto* to = static_cast<Element*>(const_cast<void*>(params.out.data)) + work.offset(params.out.strides, at);
    if (may_be_nan(params, work)) {
      float zero = 0;
#pragma unroll
      for (float x : result.x) zero = fmaf(x, 0.0f, zero);
      if (Warp::any(zero != 0)) {
        recompute_row<Config>(params, work, at, share, [to](int column, float x) { from_f32(x, to[column]); });
        return;
      }
    }
    const int column = lane_index() * kColumns;
    if (column >= params.head_dim_v) return;
    if constexpr (kColumns == 4) {
      *reinterpret_cast<uint2*>(to + column) = {pack<Element>(result.x[0], result.x[1]), pack<Element>(result.x[2], result.x[3])};
    } else {
      *reinterpret_cast<std::uint32_t*>(to + column) = pack<Element>(result.x[0], result.x[1]);
    }
  }

  const Params& params;
  Storage<Config>& storage;
  const WorkTile& work;
  const float log2_scale;
};

}  // namespace fovea::gpu::sm90::one_wave
