// SPDX-License-Identifier: Apache-2.0
/// The epilogue of a warp: lse, normalisation, scales and means of V, and stores of the results.
#pragma once

#include <cuda_bf16.h>

#include "gpu/cuda/common/exact_row.cuh"
#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/common/quantized/softmax.cuh"
#include "gpu/cuda/portable/quantized_attention/load.cuh"
#include "gpu/cuda/portable/quantized_attention/values.cuh"

namespace fovea::gpu::portable::quantized_attention {

template <class Config>
class Epilogue {
 public:
  using ValueElement = typename Config::ValueElement;
  using Place = Values<ValueElement>;
  using Softmax = SumSoftmax<Config::kKeyTile / 2, 1, typename Place::Range>;
  static constexpr int kBlocks = Config::kBlocks, kOut = Config::kHeadDim / 2;

  __device__ Epilogue(const Params& params_, Storage<Config>& storage_)
      : params(params_),
        storage(storage_),
        work(storage_.work),
        lane(static_cast<int>(threadIdx.x) % 32),
        warp_row(static_cast<int>(threadIdx.x) / 32 * Config::kWarpRows) {}

  /// `out`: sums of values as they are stored, relative to 2^softmax.base().
  __device__ __forceinline__ void operator()(Softmax (&softmax)[kBlocks], float (&out)[kBlocks][kOut],
                                             const float (&query_scale)[kBlocks]) const {
    // Masked values have weight 0, and 0 * NaN is NaN.
    const bool leaks = work.full_first > work.first || work.full_last < work.last;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      softmax[b].reduce_sum();
      const float scale = Scales(params, work).scale(query_scale[b], 0).log2;
      RowPair rows{};
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int token = token_of(b, r);
        const float sum = keys_of(token).size() > 0 ? softmax[b].sum[r] : 0;
        rows.lanes[r] = lanes_not_finite(out[b], r);
        const float factor = normaliser(sum, softmax[b].top(r, scale));
        rows.share[r] = factor == 0 ? 0 : 1;
        store_lse(token, sum, softmax[b].base(r, scale));
        finish_row(out[b], r, factor);
      }
      store(b, out[b]);
      if (leaks && (rows.lanes[0] | rows.lanes[1]) != 0) compute_again(params, storage, b, rows, scale);
    }
  }

 private:
  using Exact = ExactRow<std::int8_t>;

  __device__ int token_of(int block, int r) const { return work.token + warp_row + 16 * block + lane_row(lane) + 8 * r; }
  __device__ detail::KeyRange keys_of(int token) const { return {max(token + work.low, 0), min(token + work.high + 1, work.seq_k)}; }

  static constexpr int kOne = 1 << static_cast<int>(Place::Range::kShift);  // the probability at the maximum, rounded
  /// `top` / kOne undoes the rounding of the largest probability to kOne, so that a row with one key is exact.
  static __device__ __forceinline__ float normaliser(float sum, float top) {
    if constexpr (kOne == 1) return sum == 0 ? 0 : __fdividef(1, sum);
    return sum == 0 ? 0 : top / kOne / sum;
  }

  __device__ __forceinline__ void store_lse(int token, float sum, float base) const {
    if (params.lse == nullptr || lane % 4 != 0 || token >= work.seq_q) return;
    const float lse = lse_of(sum, base) * kLn2;
    const detail::RowStrides& strides = params.lse_strides;
    params.lse[work.batch * strides.batch + std::int64_t{work.q_begin + token} * strides.row + work.head * strides.head] =
        sum == 0 ? lse : Scales(params, work).shifted(lse, token);
  }

  // ---- results --------------------------------------------------------------------------------------------------------------------

  /// `x`: normalised, of values as they are stored. A row without keys has no part of a channel.
  __device__ __forceinline__ float value_of(float x, float factor, int column) const {
    return factor == 0 ? 0 : Scales(params, work).value_of(x, column);
  }
  __device__ __forceinline__ void finish_row(float (&out)[kOut], int r, float factor) const {
#pragma unroll
    for (int pair = 0; pair < kOut / 4; ++pair) {
      const ColumnPair at = Place::columns(lane, pair, r);
      out[at.first] = value_of(out[at.first] * Place::kUnit * factor, factor, at.column);
      out[at.second] = value_of(out[at.second] * Place::kUnit * factor, factor, at.column + 1);
    }
  }

  template <class Out>
  __device__ Out* row(int token) const {
    return attention::row_of_head<Out>(params.out, work.batch, work.q_begin + token, work.head);
  }
  __device__ __forceinline__ void store(int block, const float (&out)[kOut]) const {
    switch (params.out_dtype) {
      case DType::f32: return store_as<float>(block, out);
      case DType::f16: return store_as<__half>(block, out);
      default: return store_as<__nv_bfloat16>(block, out);
    }
  }
  template <class Out>
  __device__ __forceinline__ void store_as(int block, const float (&out)[kOut]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (token_of(block, r) >= work.seq_q) continue;
      Out* to = row<Out>(token_of(block, r));
#pragma unroll
      for (int pair = 0; pair < kOut / 4; ++pair) {
        const ColumnPair at = Place::columns(lane, pair, r);
        Pack<Out, 2> x;
        from_f32(out[at.first], x.element[0]);
        from_f32(out[at.second], x.element[1]);
        if (params.out.aligned) {
          store_pack(to + at.column, x);
        } else {
          to[at.column] = x.element[0];
          to[at.column + 1] = x.element[1];
        }
      }
    }
  }
  __device__ void store_element(int token, int column, float x) const {
    switch (params.out_dtype) {
      case DType::f32: return from_f32(x, row<float>(token)[column]);
      case DType::f16: return from_f32(x, row<__half>(token)[column]);
      default: return from_f32(x, row<__nv_bfloat16>(token)[column]);
    }
  }

  // ---- rows that are not finite ---------------------------------------------------------------------------------------------------------

  /// Recomputes rows of a block that are not finite: a value that the row does not see may be NaN, and 0 * NaN is NaN.
  static __device__ __noinline__ void compute_again(const Params& params, Storage<Config>& storage, int block, RowPair rows, float scale) {
    Epilogue(params, storage).compute_rows(block, rows, scale);
  }
  __device__ __forceinline__ void compute_rows(int block, const RowPair& rows, float lane_scale) const {
    for_rows_not_finite(rows, [&](int i, int from, float share) {
      const float scale = __shfl_sync(~0u, lane_scale, from);
      const int token = work.token + warp_row + 16 * block + i;
      if (token >= work.seq_q) return;
      float columns[Exact::kColumns];
      exact(token, scale, columns);
#pragma unroll
      for (int c = 0; c < Exact::kColumns; ++c) {
        const int column = c * 32 + lane;
        if (column < Config::kHeadDim) store_element(token, column, value_of(columns[c], share, column));
      }
    });
  }
  __device__ void exact(int token, float scale, float (&columns)[Exact::kColumns]) const {
    const Scales scales(params, work);
    const float query_scale = scales.of_query(token);
    const Exact one{attention::row_of_head<std::int8_t>(params.q, work.batch, work.q_begin + token, work.head), Config::kHeadDim,
                    Config::kHeadDim};
    const auto row_of = [&](int key) {
      return KeyRow<std::int8_t, ValueElement>{static_cast<const std::int8_t*>(work.keys) + key * params.k.strides.row,
                                               static_cast<const ValueElement*>(work.values) + key * params.v.strides.row};
    };
    const detail::KeyRange keys = keys_of(token);
    one(
        static_cast<int>(keys.begin), static_cast<int>(keys.end), scale, row_of,
        [&](float product, int key) { return product * scales.scale(query_scale, scales.of_key(key)).unit; }, columns);
  }

  const Params& params;
  Storage<Config>& storage;
  const WorkTile& work;
  const int lane, warp_row;  // of the query tile, the warp's first row
};

}  // namespace fovea::gpu::portable::quantized_attention
