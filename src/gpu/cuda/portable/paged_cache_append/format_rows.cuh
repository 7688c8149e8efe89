// SPDX-License-Identifier: Apache-2.0
/// Quantises new rows of K and V to a format of codes and scales, in one pass. A few lanes share a row, which stays in registers.
#pragma once

#include <limits>
#include <type_traits>

#include "gpu/cuda/common/element.cuh"
#include "gpu/cuda/common/quantize.cuh"
#include "gpu/cuda/common/target.cuh"
#include "gpu/cuda/portable/paged_cache_append/codes.cuh"
#include "gpu/cuda/portable/paged_cache_append/format_params.hpp"

namespace fovea::gpu::portable::append {

inline constexpr float kLargest = std::numeric_limits<float>::max() / 2;  // that counts: no code of its scale is infinite
inline constexpr float kLeastScale = 1e-6f;

/// A lane's values. 16-bit ones stay in pairs until they are needed.
template <class From>
struct LaneRow {
  static constexpr int kPack = 16 / sizeof(From);

  __device__ __forceinline__ float2 two(int i) const { return two_to_f32<From>(&words[i * sizeof(From) / 4]); }

  /// The first `left` values, and zeros.
  __device__ __forceinline__ void load(const From* from, int left, bool packs) {
#pragma unroll
    for (std::uint32_t& word : words) word = 0;
    if (packs) {
#pragma unroll
      for (int i = 0; i < kLaneValues; i += kPack) {
        if (i < left) *reinterpret_cast<uint4*>(&words[i * sizeof(From) / 4]) = *reinterpret_cast<const uint4*>(from + i);
      }
      return;
    }
    using Bits = std::conditional_t<sizeof(From) == 4, std::uint32_t, std::uint16_t>;
#pragma unroll
    for (int i = 0; i < kLaneValues; ++i) {
      if (i < left) words[i * sizeof(From) / 4] |= std::uint32_t{reinterpret_cast<const Bits*>(from)[i]} << (i * sizeof(From) % 4 * 8);
    }
  }

  alignas(16) std::uint32_t words[kLaneValues * sizeof(From) / 4];
};

/// Over `lanes` neighbours, a power of two. NaN counts for nothing.
template <int kMostLanes>
__device__ __forceinline__ float largest_of(float x, int lanes = kMostLanes) {
#pragma unroll
  for (int distance = kMostLanes / 2; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, distance & (lanes - 1)));
  return x;
}

/// The exponent of the smallest power of two at or above a magnitude, plus 127, from 0 to 254. Zero gives 127.
__device__ __forceinline__ std::uint32_t ue8m0_at_least(float x) {
  const std::uint32_t bits = __float_as_uint(x);
  return bits == 0 ? 127 : bits <= 0x00400000u ? 0 : (bits + 0x007fffffu) >> 23;
}

constexpr int largest_code(KvCode code) { return code == KvCode::i8 ? 127 : code == KvCode::e4m3 ? 448 : 6; }

/// Stores the first `bytes` of a lane's codes.
template <int kWords>
__device__ __forceinline__ void store_codes(std::byte* to, const Pack<std::uint32_t, kWords>& words, int bytes, int at_once) {
  if (at_once == 4 * kWords && bytes == 4 * kWords) {
    *reinterpret_cast<Pack<std::uint32_t, kWords>*>(to) = words;
  } else if (at_once >= 4 && bytes % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if (4 * i < bytes) *reinterpret_cast<std::uint32_t*>(to + 4 * i) = words.element[i];
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4 * kWords; ++i) {
      if (i < bytes) to[i] = static_cast<std::byte>(words.element[i / 4] >> (8 * (i % 4)));
    }
  }
}

/// One row, by its lanes.
template <KvFormat kFormat, class From>
class FormatRow {
 public:
  __device__ __forceinline__ FormatRow(const FormatSide& side_, const LaneRow<From>& values_, float global_, int lane_, int lanes_)
      : side(side_), values(values_), global(global_), lane(lane_), lanes(lanes_), left(side_.head_dim - lane_ * kLaneValues) {}

  /// `codes`, `scales`: of the row. All lanes of a warp call it; only those with `wanted` store.
  __device__ __forceinline__ void store(std::byte* codes, std::byte* scales, bool wanted) const {
    if constexpr (kRow.scale == KvScale::token) {
      store_token(codes, scales, wanted);
    } else if constexpr (kRow.scale == KvScale::token_zero) {
      store_int4(codes, scales, wanted);
    } else if constexpr (kRow.scale == KvScale::block_e4m3) {
      store_e4m3_groups(codes, scales, wanted);
    } else if constexpr (kRow.scale == KvScale::block_ue8m0) {
      store_ue8m0_groups(codes, scales, wanted);
    } else {
      const Divisor divisor(global);
      store_values(codes, wanted, [&](float x) { return divisor.divide(x); });
    }
  }

 private:
  static constexpr KvRowFormat kRow = *kv_row_format(kFormat);
  static constexpr int kGroupLanes = kRow.group / kLaneValues;  // neighbours, which share the scale of a group

  __device__ __forceinline__ float largest_size() const {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < kLaneValues; i += 2) largest = fmaxf(fmaxf(largest, fabsf(values.two(i).x)), fabsf(values.two(i).y));
    return largest;
  }

  /// `quotient(value)` is coded. `mask`: bits of a word that stay.
  template <class QuotientOf>
  __device__ __forceinline__ void store_values(std::byte* codes, bool wanted, const QuotientOf& quotient, std::uint32_t mask = ~0u) const {
    if (!wanted || left <= 0) return;
    constexpr int kCount = kWordCodes<kRow.code>, kWords = kLaneValues / kCount;
    Pack<std::uint32_t, kWords> words;
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      const auto at = [&](int i) -> Quotient {
        const float2 two = values.two(word * kCount + i / 2 * 2);
        return quotient(i % 2 == 0 ? two.x : two.y);
      };
      if constexpr (kCount == 8) {
        words.element[word] = word_of_codes<kRow.code, 8>({at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)}) & mask;
      } else {
        words.element[word] = word_of_codes<kRow.code, 4>({at(0), at(1), at(2), at(3)}) & mask;
      }
    }
    store_codes(codes + lane * (4 * kWords), words, min(left, kLaneValues) * kRow.code_bits() / 8, side.store_bytes);
  }

  __device__ __forceinline__ void store_token(std::byte* codes, std::byte* scales, bool wanted) const {
    const float largest = fminf(largest_of<kMostRowLanes>(largest_size(), lanes), kLargest);
    float scale = fmaxf(divided_by<largest_code(kRow.code)>(largest), kLeastScale);
    const __half half = __float2half_rn(fminf(scale, 65504.0f));
    if (side.half_scales) scale = __half2float(half);
    if (wanted && lane == 0) {
      if (side.half_scales) {
        *reinterpret_cast<__half*>(scales) = half;
      } else {
        *reinterpret_cast<float*>(scales) = scale;
      }
    }
    const float inverse = 1 / scale;
    store_values(codes, wanted, [&](float x) { return x * inverse; });
  }

  __device__ __forceinline__ void store_int4(std::byte* codes, std::byte* scales, bool wanted) const {
    float most = 0, least = 0;  // least: its negative
#pragma unroll
    for (int i = 0; i < kLaneValues; i += 2) {
      const float2 two = values.two(i);
      most = fmaxf(fmaxf(most, two.x), two.y);
      least = fmaxf(fmaxf(least, -two.x), -two.y);
    }
    most = fminf(largest_of<kMostRowLanes>(most, lanes), kLargest);
    least = fminf(largest_of<kMostRowLanes>(least, lanes), kLargest);
    const float scale = fmaxf(divided_by<15>(most + least), kLeastScale);
    const std::uint32_t zero = min(integer_of<KvCode::u4>(least / scale), 15u);
    if (wanted && lane == 0) *reinterpret_cast<std::uint32_t*>(scales) = (__float_as_uint(scale) & ~15u) | zero;
    const float inverse = 1 / scale, offset = static_cast<float>(zero);
    store_values(codes, wanted, [&](float x) { return fmaf(x, inverse, offset); });
  }

  /// A twofold scale makes halves of quotients.
  __device__ __forceinline__ void store_e4m3_groups(std::byte* codes, std::byte* scales, bool wanted) const {
    static_assert(kGroupLanes <= 1);
    const float largest = fminf(largest_size(), kLargest);
    const std::uint32_t code = e4m3_codes(fabsf(divided_by<6>(largest) / global), 0) & 0xff;
    if (wanted && left > 0) scales[lane] = static_cast<std::byte>(code);
    const float scale = floats_from_halves(halves_from_e4m3(code)).x * global;
    const Divisor divisor(2 * scale);
    const auto half = [&](float x) {
      const float2 both = divisor.refined_and_first(x);
      return Quotient(both.x, both.y);
    };
    store_values(codes, wanted, half, scale == 0 ? 0 : ~0u);
  }

  /// The inverse of a power of two is one too.
  __device__ __forceinline__ void store_ue8m0_groups(std::byte* codes, std::byte* scales, bool wanted) const {
    const float largest = fminf(largest_of<kGroupLanes>(largest_size()), kLargest);
    const std::uint32_t code = ue8m0_at_least(divided_by<largest_code(kRow.code)>(largest));
    if (wanted && left > 0 && lane % kGroupLanes == 0) scales[lane / kGroupLanes] = static_cast<std::byte>(code);
    const float inverse = f32_from_ue8m0(254 - code) * (kRow.code == KvCode::e2m1 ? 0.5f : 1.0f);
    store_values(codes, wanted, [&](float x) { return x * inverse; });
  }

  const FormatSide& side;
  const LaneRow<From>& values;
  const float global;
  const int lane, lanes, left;
};

/// Where a row lies, from the start of each tensor of a cache.
struct RowPlace {
  std::int64_t codes, scales;
};
inline constexpr std::int64_t kNowhere = std::numeric_limits<std::int64_t>::min();

/// The host does not see the slots: a slot outside the cache is skipped, as -1 is.
__device__ __forceinline__ RowPlace place_of(const FormatParams& params, const FormatSide& side, int row) {
  const int token = params.heads.quotient(row), head = row - token * params.heads.divisor;
  const std::int64_t slot = row < params.rows ? params.slot_mapping[token] : -1;
  if (slot < 0 || slot >= params.slots) return {kNowhere, 0};
  const std::int64_t block = slot / params.page, position = slot - block * params.page;
  const auto offset = [&](const detail::CacheStrides& strides) {
    return block * strides.block + position * strides.token + head * strides.head;
  };
  return {offset(side.strides), offset(side.scale_strides)};
}

inline constexpr int kFormatBlocks = kTarget == 75 ? 8 : 12;  // of a multiprocessor, at most 40 registers a thread from 8.0 on

/// Lanes take a row of a token and a head. Rows are loaded before their slots are known.
template <KvFormat kFormat, class From>
__global__ void __launch_bounds__(kFormatThreads, kFormatBlocks) append_format(const __grid_constant__ FormatParams params) {
  __shared__ RowPlace places[kFormatThreads];  // [row of the block]
  const FormatSide& side = params.sides[blockIdx.y];
  const int thread = static_cast<int>(threadIdx.x), lanes = 1 << params.lanes_log, lane = thread & (lanes - 1);
  const int block_rows = kFormatThreads >> params.lanes_log, begin = static_cast<int>(blockIdx.x) * block_rows;
  const int own = thread >> params.lanes_log, row = begin + own;
  const int token = params.heads.quotient(row), head = row - token * params.heads.divisor;

  const From* from = static_cast<const From*>(side.rows) + token * side.row_stride + head * side.head_stride + lane * kLaneValues;
  LaneRow<From> values;
  values.load(from, row < params.rows ? side.head_dim - lane * kLaneValues : 0, side.load_packs);
  const bool has_global = kv_row_format(kFormat)->has_global && side.global != nullptr;
  const float global = has_global ? side.global[head * side.global_stride] : 1.0f;
  if (thread < block_rows) places[thread] = place_of(params, side, begin + thread);
  __syncthreads();

  const RowPlace place = places[own];
  FormatRow<kFormat, From>(side, values, global, lane, lanes)
      .store(side.cache + place.codes, side.scales + place.scales, place.codes != kNowhere);
}

}  // namespace fovea::gpu::portable::append
