// SPDX-License-Identifier: Apache-2.0
/// The epilogue of a warpgroup: normalisation, scales and means of V, lse. Results are stored as those of
/// the dense kernel.
#pragma once

#include "gpu/cuda/sm90/dense/epilogue.cuh"
#include "gpu/cuda/sm90/dense/value_tiles.cuh"
#include "gpu/cuda/sm90/quantized_attention/int_scores.cuh"

namespace fovea::gpu::sm90::quantized_attention {

/// The value of a key in a value tile, with the other keys of its unit. The next unit is the next column.
struct TileValue {
  __nv_fp8_e4m3 value;
  std::byte other_keys[kValueUnit - 1];
};
__device__ inline float to_f32(const TileValue& x) { return gpu::to_f32(x.value); }

template <class Config>
class Epilogue : public dense::Epilogue<Config> {
  using Base = dense::Epilogue<Config>;
  using Base::kOut, Base::kOne, Base::params, Base::storage, Base::part;

 public:
  using Softmax = SumSoftmax<Config::kKeyTile / 2, Config::kKeyBlocks, typename Base::Range>;
  using Base::Base;

  /// Stores the results of a work tile. `out`: sums of stored values, relative to 2^softmax.base().
  __device__ __forceinline__ void operator()(dense::WorkSlots slots, Softmax softmax, float (&out)[kOut], ScoreScale scale) {
    const WorkTile& work = storage.work_tiles[slots.work];
    part = dense::rows_of_warpgroup<Config>(Base::warpgroup, slots.work);
    softmax.reduce_sum();
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const auto keys = work.keys_of(token_of(work, r));
      // Rows without keys have no sum, even where the scale of the keys is NaN.
      if (keys.begin >= keys.end) softmax.sum[r] = 0;
      factor[r] = softmax.sum[r] == 0 ? 0 : softmax.top(r, scale.log2) / kOne / softmax.sum[r];
    }
    normalise(Scales(params, work), storage.work_tile_data[slots.work].value, out, factor);
    if (stores_f32()) {
      store_f32(work, out);
    } else {
      constexpr float kAsIs[2] = {1, 1};
      if (params.out_dtype == DType::f16) {
        Base::template store_16_bit<__half>(work, out, kAsIs);
      } else {
        Base::template store_16_bit<__nv_bfloat16>(work, out, kAsIs);
      }
    }
    // Masked keys give values the weight 0, and 0 times NaN is NaN.
    const bool may_be_nan = work.full_first > work.first || work.full_last < work.last;
    if (may_be_nan) {
      const RowPair rows{{lanes_not_finite(out, 0), lanes_not_finite(out, 1)},
                         {factor[0] == 0 ? 0.0f : 1.0f, factor[1] == 0 ? 0.0f : 1.0f}};
      if ((rows.lanes[0] | rows.lanes[1]) != 0) recompute_rows(work, rows, scale);
    }
    const bool second = lane_index() % 2 == 1;  // row whose lse this lane stores
    const float base = second ? softmax.base(1, scale.log2) : softmax.base(0, scale.log2);
    store_lse(work, second, second ? softmax.sum[1] : softmax.sum[0], base);
    Base::release(slots);
  }

 private:
  __device__ int token_of(const WorkTile& work, int r) const { return work.token + dense::tile_row(part, r); }
  /// Whether results are stored as f32, from registers.
  __device__ __forceinline__ bool stores_f32() const { return params.out_dtype == DType::f32; }

  /// Applies factors, scales and means to `out`. `value`: scales of channels.
  __device__ __forceinline__ void normalise(const Scales& scales, const float* value, float (&out)[kOut], const float (&factor)[2]) const {
    const int column = lane_column(lane_index());
#pragma unroll
    for (int i = 0; i < kOut; ++i) out[i] *= factor[row_of(i)];
    if (params.codes.v_scale.data != nullptr) {
#pragma unroll
      for (int i = 0; i < kOut; ++i) out[i] *= value[column + column_of(i)];
    }
    if (const float* mean = scales.value_means()) {
#pragma unroll
      for (int i = 0; i < kOut; ++i) out[i] = factor[row_of(i)] == 0 ? 0 : out[i] + mean[column + column_of(i)];  // 0 without keys
    }
  }

  /// Stores lse, in the first two lanes of each four.
  __device__ __forceinline__ void store_lse(const WorkTile& work, int r, float sum, float base) const {
    const int token = token_of(work, r);
    if (params.lse == nullptr || lane_index() % 4 > 1 || token >= work.seq_q) return;
    params.lse[work.offset(params.lse_strides, {token, work.head})] =
        sum == 0 ? -INFINITY : Scales(params, work).shifted((base + Warp::log2(sum)) * kLn2, token);
  }

  __device__ float* f32_row(const WorkTile& work, int token) const {
    return static_cast<float*>(const_cast<void*>(params.out.data)) + work.offset(params.out.strides, {token, work.head});
  }
  __device__ __forceinline__ void store_f32(const WorkTile& work, const float (&out)[kOut]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (token_of(work, r) >= work.seq_q) continue;
      float* to = f32_row(work, token_of(work, r)) + lane_column(lane_index());
#pragma unroll
      for (int i = 2 * r; i < kOut; i += 4) *reinterpret_cast<float2*>(to + column_of(i)) = {out[i], out[i + 1]};
    }
  }

  // ---- what is not finite ---------------------------------------------------------------------------------------------------------

  using Exact = gpu::ExactRow<std::int8_t>;

  /// Recomputes rows of this warp with results that are not finite, which masked values may have caused.
  __device__ __noinline__ void recompute_rows(const WorkTile& work, RowPair rows, ScoreScale lane_scale) {
    for_rows_not_finite(rows, [&](int i, int lane, float weight) {
      const float log2 = __shfl_sync(~0u, lane_scale.log2, lane);
      const int row = part * dense::kWarpgroupRows + thread_index() % 128 / 32 * 16 + i, token = work.token + row;
      if (token >= work.seq_q) return;
      float columns[Exact::kColumns];
      exact(work, token, log2, columns);
#pragma unroll
      for (int c = 0; c < Exact::kColumns; ++c) {
        const int column = c * 32 + lane_index();
        if (column >= Config::kHeadDimV) continue;
        store_one(work, token, column, weight == 0 ? 0 : Scales(params, work).value_of(columns[c], column));
      }
    });
  }
  __device__ void exact(const WorkTile& work, int token, float log2, float (&columns)[Exact::kColumns]) const {
    const Scales scales(params, work);
    const int kv_head = work.head / params.heads_per_kv;
    const Exact one{row_at<std::int8_t>(params.q, work, work.q_begin + token, work.head), Config::kHeadDimQk, Config::kHeadDimV};
    const auto* keys = row_at<std::int8_t>(params.k, work, work.k_begin, kv_head);
    const auto row_of = [&](int key) { return KeyRow<std::int8_t, Value>{keys + key * params.k.strides.row, value_row(work, key)}; };
    const float query_scale = scales.of_query(token);
    const auto seen = work.keys_of(token);
    one(
        seen.begin, seen.end, log2, row_of, [&](float dot, int key) { return dot * scales.scale(query_scale, scales.of_key(key)).unit; },
        columns);
  }
  /// e4m3 values are read from value tiles, as the quantiser may have written no rows.
  using Value = std::conditional_t<Config::k8BitValues, TileValue, typename Config::ValueElement>;
  __device__ const Value* value_row(const WorkTile& work, int key) const {
    if constexpr (Config::k8BitValues) {
      const int unit = key % Config::kKeyTile / kValueUnit * Config::kHeadDimV, place = value_place(key % kValueUnit);
      const std::byte* tile = dense::value_tile_at<Config>(params, work, key / Config::kKeyTile);
      return reinterpret_cast<const Value*>(tile + unit * kValueUnit + place);
    } else {
      return row_at<Value>(params.v, work, work.k_begin + key, work.head / params.heads_per_kv);
    }
  }
  template <class Element>
  static __device__ const Element* row_at(const ClippedRows& rows, const WorkTile& work, int row, int head) {
    return static_cast<const Element*>(rows.data) + work.batch * rows.strides.batch + row * rows.strides.row + head * rows.strides.head;
  }

  __device__ void store_one(const WorkTile& work, int token, int column, float x) const {
    const RowPlace at{token, work.head};
    if (stores_f32()) {
      f32_row(work, token)[column] = x;
    } else if (params.out_dtype == DType::f16) {
      from_f32(x, Base::template row_of_results<__half>(work, at)[column]);
    } else {
      from_f32(x, Base::template row_of_results<__nv_bfloat16>(work, at)[column]);
    }
  }
};

}  // namespace fovea::gpu::sm90::quantized_attention
