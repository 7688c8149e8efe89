// SPDX-License-Identifier: Apache-2.0
/// Slots of a packed cache to rows: code * scale in f32, rounded once. All loads of a token are issued before any of it is used.
#pragma once

#include "gpu/cuda/common/quantize.cuh"
#include "gpu/cuda/portable/latent_cache_conversion/token.cuh"

namespace fovea::gpu::portable::conversion {

template <class S, bool kAligned>
__device__ inline float load_scale(const std::byte* scale) {
  if constexpr (S::kPacked.scale_type == ScaleType::f32) {
    return __uint_as_float(load_by<std::uint32_t, CacheUnit<kAligned, std::uint32_t>>(scale));
  } else {
    const auto code = static_cast<std::uint32_t>(*scale);
    if constexpr (S::kPacked.scale_type == ScaleType::ue8m0) {
      return f32_from_ue8m0(code);
    } else {
      return floats_from_halves(halves_from_e4m3(code)).x * kE2m1Unit;
    }
  }
}

/// Writes two values into a chunk: one word of 16-bit elements, or two words of f32.
template <class T>
__device__ inline void put_pair(Chunk& chunk, int pair, float first, float second) {
  if constexpr (sizeof(T) == 4) {
    chunk.element[2 * pair] = __float_as_uint(first);
    chunk.element[2 * pair + 1] = __float_as_uint(second);
  } else {
    Pack<T, 2> both;
    from_f32(first, both.element[0]);
    from_f32(second, both.element[1]);
    chunk.element[pair] = *reinterpret_cast<const std::uint32_t*>(&both);
  }
}

template <class S, class T>
__device__ inline Chunk decode_codes(typename S::Codes codes, float scale) {
  constexpr int kPairBits = S::kE4m3 ? 16 : 8;
  Chunk chunk;
#pragma unroll
  for (int pair = 0; pair < S::kValues / 2; ++pair) {
    const auto code = static_cast<std::uint32_t>(codes >> pair * kPairBits) & ((1u << kPairBits) - 1);
    const float2 values = floats_from_halves(S::kE4m3 ? halves_from_e4m3(code) : halves_from_e2m1(code));
    put_pair<T>(chunk, pair, values.x * scale, values.y * scale);
  }
  return chunk;
}

template <class S, class T>
__device__ inline Chunk decode_rope(const typename S::Rope& rope) {
  Chunk chunk;
#pragma unroll
  for (int pair = 0; pair < S::kValues / 2; ++pair) {
    const std::uint32_t both = rope.element[pair];
    put_pair<T>(chunk, pair, __uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u));
  }
  return chunk;
}

/// `row` is the address of the lane's first chunk.
template <class S, class T, bool kAligned>
__device__ inline void dequantize_token(const Token<const std::byte>& token, std::byte* row, unsigned lane) {
  typename S::Codes codes[S::kPasses] = {};
  float scales[S::kPasses] = {};
  typename S::Rope rope{};
#pragma unroll
  for (int pass = 0; pass < S::kPasses; ++pass) {
    if (!S::has_codes(pass, lane)) continue;
    codes[pass] = load_by<typename S::Codes, CacheUnit<kAligned, typename S::Codes>>(token.codes + pass * S::kCodeStep);
    scales[pass] = load_scale<S, kAligned>(token.scales + pass * S::kScaleStep);
  }
  if (S::has_rope(lane)) rope = load_by<typename S::Rope, CacheUnit<kAligned, typename S::Rope>>(token.rope);
#pragma unroll
  for (int pass = 0; pass < S::kPasses; ++pass) {
    if (!S::has_codes(pass, lane)) continue;
    store_by<RowUnit<kAligned, T>>(row + pass * S::kRowStep, decode_codes<S, T>(codes[pass], scales[pass]));
  }
  if (S::has_rope(lane)) store_by<RowUnit<kAligned, T>>(row + S::kCodeChunks * kChunkBytes, decode_rope<S, T>(rope));
}

template <CacheFormat kFormat, class T, bool kAligned>
__global__ void __launch_bounds__(kThreads) dequantize(const __grid_constant__ DequantizeParams params) {
  using S = Shape<kFormat, T>;
  for_each_token<S>(params, [&](std::int64_t at, std::int64_t slot, unsigned lane) {
    std::byte* row = params.rows + at * params.row_stride + lane * kChunkBytes;
    if (has_slot(params, slot)) dequantize_token<S, T, kAligned>(token_at<S>(params, slot, lane), row, lane);
  });
}

}  // namespace fovea::gpu::portable::conversion
