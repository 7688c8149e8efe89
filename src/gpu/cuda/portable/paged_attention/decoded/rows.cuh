// SPDX-License-Identifier: Apache-2.0
/// Rows of any format from global memory, decoded to elements in shared memory.
#pragma once

#include <cstdint>

#include "gpu/cuda/portable/paged_attention/decode.cuh"
#include "gpu/cuda/portable/paged_attention/storage.cuh"

namespace fovea::gpu::portable::paged_attention {

/// Place and scale of a lane's row, one of 32: 16 keys, then 16 values.
struct RowPlace {
  std::int64_t row, scales;  // in bytes, from those of the head's first row
  RowScale scale;
};

/// Loads of a warp.
template <class Config>
struct RowDecoder {
  const Params& params;
  const int kv_head, lane;
  const int row;  // of a stage, the first of the 16

  /// `side`: 0 for keys, 1 for values. `place`: the lane's; `found`: bits of the rows that are in the cache. The others become zeros.
  __device__ __forceinline__ void operator()(std::uint32_t to, int side, const RowPlace& place, unsigned found) const {
    const RowCodes& codes = side != 0 ? params.v_codes : params.k_codes;
    if (codes.elements) {
      decode_side<4>(to, side, place, found);
    } else if (is_nibble(codes.code)) {
      decode_side<1>(to, side, place, found);
    } else {
      decode_side<2>(to, side, place, found);
    }
  }

 private:
  using Layout = CacheRows<Config>;
  static constexpr int kRowLanes = Config::kRowBytes / 16, kRowsAtOnce = 32 / kRowLanes;  // as in Loader

  /// A chunk of eight columns has kWords words.
  template <int kWords>
  __device__ __forceinline__ void decode_side(std::uint32_t to, int side, const RowPlace& place, unsigned found) const {
    constexpr int kTogether = Config::kHeadDim > 128 ? 4 : 8;  // rows of a lane whose loads are issued together; more would spill
    const bool aligned = side != 0 ? params.v.aligned : params.k.aligned;
    if (aligned) {
      for_rows<kWords, kTogether, true>(to, side, place, found);
    } else {
      for_rows<kWords, 1, false>(to, side, place, found);
    }
  }

  template <int kWords, int kTogether, bool kAligned>
  __device__ __forceinline__ void for_rows(std::uint32_t to, int side, const RowPlace& place, unsigned found) const {
    const Cache& cache = side != 0 ? params.v : params.k;
    const RowCodes& codes = side != 0 ? params.v_codes : params.k_codes;
    const int chunk = lane % kRowLanes, dims = side != 0 ? params.head_dim_v : params.head_dim_qk;
    const std::byte* row_from = cache.data + kv_head * cache.strides.head + chunk * (4 * kWords);
    const std::byte* scales = cache.scales + kv_head * cache.scale_strides.head;
    if (codes.group != 0) scales += 8 * chunk / codes.group;
#pragma unroll 1
    for (int begin = 0; begin < kGroupKeys; begin += kTogether * kRowsAtOnce) {
      std::uint32_t words[kTogether][kWords], block[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int of = side * kGroupKeys + begin + i * kRowsAtOnce + lane / kRowLanes;
        const std::int64_t at = __shfl_sync(~0u, place.row, of), scales_at = __shfl_sync(~0u, place.scales, of);
        const bool present = 8 * chunk < dims && (found >> of & 1) != 0;
        load_row_words<kWords, kAligned>(words[i], present ? row_from + at : nullptr);
        block[i] = present && codes.group != 0 ? static_cast<unsigned>(scales[scales_at]) : 0;
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int of_group = begin + i * kRowsAtOnce + lane / kRowLanes;
        const float zero = __shfl_sync(~0u, place.scale.zero, side * kGroupKeys + of_group);
        store_shared_128(to + static_cast<std::uint32_t>(Layout::offset(row + of_group, chunk)),
                         decoded<typename Config::Element>(codes, words[i], zero, block[i]));
      }
    }
  }
};

}  // namespace fovea::gpu::portable::paged_attention
