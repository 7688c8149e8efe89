// SPDX-License-Identifier: Apache-2.0
/// Quantises new rows of K and V to a format of codes and scales, in one pass. Sixteen lanes share a row, which stays in registers.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <limits>

#include "gpu/cuda/common/quantize.cuh"
#include "gpu/cuda/portable/paged_cache_append/format_params.hpp"

namespace fovea::gpu::portable::append {

inline constexpr float kLargest = std::numeric_limits<float>::max() / 2;  // that counts: no code of its scale is infinite
inline constexpr float kLeastScale = 1e-6f;

/// Eight values, which the dtype says how to read. `left`: how many there are.
__device__ __forceinline__ void load_values(float (&to)[kLaneValues], const void* rows, std::int64_t at, int left, const FormatSide& side,
                                            DType dtype) {
  const auto as_floats = [&](const uint4& words, const auto& convert) {
    const std::uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = convert(pairs[i]);
      to[2 * i] = two.x;
      to[2 * i + 1] = two.y;
    }
  };
  if (side.load_packs && left >= kLaneValues) {
    if (dtype != DType::f32) {
      const uint4 words = *reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(rows) + at);
      if (dtype == DType::f16) return as_floats(words, [](std::uint32_t pair) { return floats_from_halves(pair); });
      return as_floats(words, [](std::uint32_t pair) { return float2{__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)}; });
    }
    const auto* from = reinterpret_cast<const float4*>(static_cast<const float*>(rows) + at);
    const float4 a = from[0], b = from[1];
    const float all[] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < kLaneValues; ++i) to[i] = all[i];
    return;
  }
#pragma unroll
  for (int i = 0; i < kLaneValues; ++i) {
    to[i] = 0;
    if (i >= left) continue;
    if (dtype == DType::f32) to[i] = static_cast<const float*>(rows)[at + i];
    if (dtype == DType::f16) to[i] = __half2float(static_cast<const __half*>(rows)[at + i]);
    if (dtype == DType::bf16) to[i] = __bfloat162float(static_cast<const __nv_bfloat16*>(rows)[at + i]);
  }
}

/// Over `kLanes` neighbouring lanes. NaN counts for nothing.
template <int kLanes>
__device__ __forceinline__ float largest_of(float x) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, distance));
  return x;
}
__device__ __forceinline__ float largest_size(const float (&values)[kLaneValues]) {
  float largest = 0;
#pragma unroll
  for (const float x : values) largest = fmaxf(largest, fabsf(x));
  return largest;
}

/// A number below 2^22 added to kRounding is rounded to an integer, nearest even, which the lowest bits of the sum hold. It takes a quarter
/// of a conversion's time.
inline constexpr float kRounding = 0x1.8p23f;

/// Rounded to nearest even between the bounds: the lowest bits. NaN becomes the upper one.
__device__ __forceinline__ std::uint32_t rounded_bits(float x, float least, float most) {
  return __float_as_uint(fmaxf(fminf(x, most), least) + kRounding);
}

/// The nearest e2m1 code, ties to even. Codes up to 4 are 0.5 apart, up to 6 are 1 apart. NaN becomes the largest.
__device__ __forceinline__ std::uint32_t e2m1_code(float x) {
  const float size = fminf(fabsf(x), 6.0f);
  const float steps = size < 2 ? 2 * size : size < 4 ? size : size / 2;
  const std::uint32_t first = size < 2 ? 0 : size < 4 ? 2 : 4;
  return (__float_as_uint(steps + kRounding) & 7) + first + (__float_as_uint(x) >> 28 & 8);
}

/// The exponent of the smallest power of two at or above a positive number, plus 127, from 0 to 254.
__device__ __forceinline__ int ue8m0_at_least(float x) {
  const int bits = __float_as_int(x), exponent = bits >> 23, fraction = bits & 0x7fffff;
  if (exponent == 0) return fraction > 0x400000 ? 1 : 0;
  return min(exponent + (fraction != 0), 254);
}

constexpr KvCode code_of(KvFormat format) { return kv_row_format(format)->code; }
constexpr float largest_code(KvCode code) { return code == KvCode::i8 ? 127.0f : code == KvCode::e4m3 ? 448.0f : 6.0f; }

/// Eight codes, in the low bytes of two words, or in one.
template <KvCode kCode, class Quotient>
__device__ __forceinline__ uint2 codes_of(const float (&values)[kLaneValues], const Quotient& quotient) {
  std::uint32_t words[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < kLaneValues; i += 2) {
    const float a = quotient(values[i]), b = quotient(values[i + 1]);
    if constexpr (kCode == KvCode::u4) {
      words[0] |= ((rounded_bits(a, 0, 15) & 15) | (rounded_bits(b, 0, 15) & 15) << 4) << (4 * i);
    } else if constexpr (kCode == KvCode::e2m1) {
      words[0] |= (e2m1_code(a) | e2m1_code(b) << 4) << (4 * i);
    } else {
      std::uint32_t two;
      if constexpr (kCode == KvCode::i8) {
        two = __byte_perm(rounded_bits(a, -128, 127), rounded_bits(b, -128, 127), 0x0040) & 0xffff;
      } else {
        two = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, kCode == KvCode::e4m3 ? __NV_E4M3 : __NV_E5M2);
      }
      words[i / 4] |= two << (8 * (i % 4));
    }
  }
  return {words[0], words[1]};
}

/// Stores the first `bytes` of a lane's codes.
__device__ __forceinline__ void store_codes(std::byte* to, uint2 codes, int bytes, int at_once) {
  if (at_once == 8 && bytes == 8) {
    *reinterpret_cast<uint2*>(to) = codes;
  } else if (at_once >= 4 && bytes % 4 == 0) {
    if (bytes > 0) *reinterpret_cast<std::uint32_t*>(to) = codes.x;
    if (bytes > 4) *reinterpret_cast<std::uint32_t*>(to + 4) = codes.y;
  } else {
    const std::uint32_t words[2] = {codes.x, codes.y};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i < bytes) to[i] = static_cast<std::byte>(words[i / 4] >> (8 * (i % 4)));
    }
  }
}

/// One row, by its lanes.
template <KvFormat kFormat, int kPacks>
class FormatRow {
 public:
  __device__ __forceinline__ FormatRow(const FormatSide& side_, const float (&values_)[kPacks][kLaneValues], int head_, int lane_)
      : side(side_), values(values_), head(head_), lane(lane_) {}

  /// `codes`, `scales`: of the row. All lanes of a warp call it; only those with `wanted` store.
  __device__ __forceinline__ void store(std::byte* codes, std::byte* scales, bool wanted) const {
    if constexpr (kRow.scale == KvScale::token) {
      store_token(codes, scales, wanted);
    } else if constexpr (kRow.scale == KvScale::token_zero) {
      store_int4(codes, scales, wanted);
    } else if constexpr (kRow.scale == KvScale::none) {
      const float global = global_scale();
#pragma unroll
      for (int pack = 0; pack < kPacks; ++pack) store_pack(codes, pack, wanted, [&](float x) { return x / global; });
    } else {
      store_groups(codes, scales, wanted);
    }
  }

 private:
  static constexpr KvRowFormat kRow = *kv_row_format(kFormat);

  __device__ float global_scale() const { return side.global == nullptr ? 1.0f : side.global[head * side.global_stride]; }

  template <class Quotient>
  __device__ __forceinline__ void store_pack(std::byte* codes, int pack, bool wanted, const Quotient& quotient) const {
    const int first = (pack * kRowLanes + lane) * kLaneValues, left = min(side.head_dim - first, kLaneValues);
    if (!wanted || left <= 0) return;
    store_codes(codes + first * kRow.code_bits() / 8, codes_of<kRow.code>(values[pack], quotient), left * kRow.code_bits() / 8,
                side.store_bytes);
  }

  __device__ __forceinline__ void store_token(std::byte* codes, std::byte* scales, bool wanted) const {
    float largest = 0;
#pragma unroll
    for (const auto& pack : values) largest = fmaxf(largest, largest_size(pack));
    float scale = fmaxf(fminf(largest_of<kRowLanes>(largest), kLargest) / largest_code(kRow.code), kLeastScale);
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
#pragma unroll
    for (int pack = 0; pack < kPacks; ++pack) store_pack(codes, pack, wanted, [&](float x) { return x * inverse; });
  }

  __device__ __forceinline__ void store_int4(std::byte* codes, std::byte* scales, bool wanted) const {
    float most = 0, least = 0;  // least: its negative
#pragma unroll
    for (const auto& pack : values) {
#pragma unroll
      for (const float x : pack) {
        most = fmaxf(most, x);
        least = fmaxf(least, -x);
      }
    }
    most = fminf(largest_of<kRowLanes>(most), kLargest);
    least = fminf(largest_of<kRowLanes>(least), kLargest);
    const float scale = fmaxf((most + least) / 15.0f, kLeastScale);
    const std::uint32_t zero = rounded_bits(least / scale, 0, 15) & 15;
    if (wanted && lane == 0) *reinterpret_cast<std::uint32_t*>(scales) = (__float_as_uint(scale) & ~15u) | zero;
    const float inverse = 1 / scale;
#pragma unroll
    for (int pack = 0; pack < kPacks; ++pack) {
      store_pack(codes, pack, wanted, [&](float x) { return fmaf(x, inverse, static_cast<float>(zero)); });
    }
  }

  /// Neighbouring lanes share a group's scale.
  __device__ __forceinline__ void store_groups(std::byte* codes, std::byte* scales, bool wanted) const {
    constexpr int kGroupLanes = kRow.group / kLaneValues;
    const float global = kRow.has_global ? global_scale() : 1.0f;
#pragma unroll
    for (int pack = 0; pack < kPacks; ++pack) {
      const float most = fminf(largest_of<kGroupLanes>(largest_size(values[pack])), kLargest) / largest_code(kRow.code);
      std::uint32_t code;
      float scale;
      if constexpr (kRow.scale == KvScale::block_e4m3) {
        code = e4m3_codes(fabsf(most / global), 0) & 0xff;
        scale = floats_from_halves(halves_from_e4m3(code)).x * global;
      } else {
        code = most == 0 ? 127 : static_cast<std::uint32_t>(ue8m0_at_least(most));
        scale = f32_from_ue8m0(code);
      }
      const int first = (pack * kRowLanes + lane) * kLaneValues;
      if (wanted && first < side.head_dim && lane % kGroupLanes == 0) scales[first / kRow.group] = static_cast<std::byte>(code);
      // The inverse of a power of two is exact. Divisor gives the e2m1 codes of a division: all quotients next to ties were tried.
      const float inverse = 1 / scale;
      const Divisor divisor(scale);
      const auto quotient = [&](float x) { return kRow.scale == KvScale::block_e4m3 ? divisor.divide(x) : x * inverse; };
      store_pack(codes, pack, wanted, [&](float x) { return scale == 0 ? 0.0f : quotient(x); });
    }
  }

  const FormatSide& side;
  const float (&values)[kPacks][kLaneValues];
  const int head, lane;
};

/// Lanes take kRowsOfLanes rows of tokens times heads. Rows are loaded before their slots are known.
template <KvFormat kFormat, int kPacks>
__global__ void __launch_bounds__(kFormatThreads) append_format(const __grid_constant__ FormatParams params) {
  const FormatSide& side = params.sides[blockIdx.y];
  const int lane = static_cast<int>(threadIdx.x) % kRowLanes;
  const int first =
      (static_cast<int>(blockIdx.x) * (kFormatThreads / kRowLanes) + static_cast<int>(threadIdx.x) / kRowLanes) * kRowsOfLanes;
  float values[kRowsOfLanes][kPacks][kLaneValues];
  std::int64_t slots[kRowsOfLanes];
#pragma unroll
  for (int i = 0; i < kRowsOfLanes; ++i) {
    const int row = first + i, token = params.heads.quotient(row), head = row - token * params.heads.divisor;
    slots[i] = -1;
    const std::int64_t at = token * side.row_stride + head * side.head_stride;
#pragma unroll
    for (int pack = 0; pack < kPacks; ++pack) {
      const int column = (pack * kRowLanes + lane) * kLaneValues;
      load_values(values[i][pack], side.rows, at + column, row < params.rows ? side.head_dim - column : 0, side, params.dtype);
    }
    if (row < params.rows) slots[i] = params.slot_mapping[token];
  }
#pragma unroll
  for (int i = 0; i < kRowsOfLanes; ++i) {
    const int row = first + i, token = params.heads.quotient(row), head = row - token * params.heads.divisor;
    const bool wanted = slots[i] >= 0 && slots[i] < params.slots;
    const std::int64_t slot = wanted ? slots[i] : 0;
    const bool is_short = params.slots <= 0x7fffffff;
    const std::int64_t block = is_short ? static_cast<unsigned>(slot) / static_cast<unsigned>(params.page) : slot / params.page;
    const std::int64_t position = slot - block * params.page;
    const auto place = [&](std::byte* data, const detail::CacheStrides& strides) {
      return data + block * strides.block + position * strides.token + head * strides.head;
    };
    FormatRow<kFormat, kPacks>(side, values[i], head, lane)
        .store(place(side.cache, side.strides), place(side.scales, side.scale_strides), wanted);
  }
}

}  // namespace fovea::gpu::portable::append
