// SPDX-License-Identifier: Apache-2.0
/// Rows to slots of a packed cache, bit for bit what the other backends write, signs of NaN included. The device's arithmetic loses these
/// signs, so signs always come from the bits of the row.
#pragma once

#include "gpu/cuda/portable/latent_cache_conversion/encode.cuh"
#include "gpu/cuda/portable/latent_cache_conversion/token.cuh"

namespace fovea::gpu::portable::conversion {

/// The largest magnitude of the group, as raw bits of T. NaN is larger than infinity.
template <class S, class T>
__device__ inline std::uint32_t group_largest(const Chunk& chunk) {
  std::uint32_t most = largest_bits<T>(chunk);
#pragma unroll
  for (int step = 1; step < S::kGroupLanes; step *= 2) most = max(most, __shfl_xor_sync(kAllLanes, most, step));
  return most;
}

template <class Codes>
struct Encoded {
  Codes codes;
  std::uint32_t scale;  // as stored in the cache
};

template <class S, class T>
__device__ inline Encoded<typename S::Codes> encode_e4m3(const Chunk& chunk, bool exact) {
  float values[S::kValues];
  to_values<T>(chunk, values);
  const float scale = choose_scale<S::kPacked.scale_type>(magnitude<T>(group_largest<S, T>(chunk)), exact);
  const bool power = S::kPacked.scale_type != ScaleType::f32 || !exact;
  const std::uint32_t stored = S::kPacked.scale_type == ScaleType::f32 ? __float_as_uint(scale) : ue8m0_from_power(scale);
  if (power) {
    const float inverse = inverse_of_power(scale);
#pragma unroll
    for (float& value : values) value *= inverse;
  } else {
    const Divisor divisor(scale);
#pragma unroll
    for (float& value : values) value = divisor.divide(value);
  }
  typename S::Codes codes = 0;
#pragma unroll
  for (int i = 0; i < S::kValues; i += 4) {
    const std::uint32_t four = e4m3_codes(values[i], values[i + 1]) | e4m3_codes(values[i + 2], values[i + 3]) << 16;
    codes |= static_cast<typename S::Codes>(four | (top_bytes<T>(chunk, i) & 0x80808080u)) << 8 * i;
  }
  return {codes, stored};
}

/// e2m1 has no NaN. A group with a NaN gets a scale of NaN, with the sign of its first NaN. Its quantised values are zeros with the signs
/// that their quotients would have.
template <class S, class T>
__device__ inline Encoded<typename S::Codes> encode_nan_group(const Chunk& chunk) {
  constexpr std::uint32_t kInfinity = infinity_bits<T>();
  const int lane = static_cast<int>(threadIdx.x) % 32;  // groups may belong to either token of the warp
  std::uint32_t is_nan = 0, negative = 0;               // one bit for each value
#pragma unroll
  for (int i = 0; i < S::kValues; ++i) {
    const std::uint32_t bits = element_bits<T>(chunk, i);
    is_nan |= static_cast<std::uint32_t>((bits & (kSign<T> - 1)) > kInfinity) << i;
    negative |= static_cast<std::uint32_t>((bits & kSign<T>) != 0) << i;
  }
  const std::uint32_t first_is_negative = is_nan != 0 ? negative >> (__ffs(static_cast<int>(is_nan)) - 1) & 1 : 0;
  const std::uint32_t lanes = __ballot_sync(kAllLanes, is_nan != 0);
  const int group_begin = lane / S::kGroupLanes * S::kGroupLanes;
  const std::uint32_t of_group = lanes >> group_begin & ((1u << S::kGroupLanes) - 1);
  const int from = of_group == 0 ? lane : group_begin + __ffs(static_cast<int>(of_group)) - 1;
  const std::uint32_t sign = __shfl_sync(kAllLanes, first_is_negative, from);
  const std::uint32_t signs = (is_nan & negative) | (sign != 0 ? ~is_nan : 0);
  std::uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < S::kValues; ++i) codes |= (signs >> i & 1) << (4 * i + 3);
  return {static_cast<typename S::Codes>(codes), 0x7fu | sign << 7};
}

template <class S, class T>
__device__ inline Encoded<typename S::Codes> encode_e2m1(const Chunk& chunk) {
  const std::uint32_t largest = group_largest<S, T>(chunk);
  const bool nan_group = largest > infinity_bits<T>();
  const std::uint32_t stored = e4m3_codes(divided_by<6>(at_most_finite(magnitude<T>(largest))), 0.0f) & 0xff;
  const FourBitDivisor divisor(floats_from_halves(halves_from_e4m3(stored)).x);
  float values[S::kValues];
  to_values<T>(chunk, values);
#pragma unroll
  for (float& value : values) value = divisor.divide(value);
  Encoded<typename S::Codes> result{static_cast<typename S::Codes>(e2m1_codes(values) | sign_nibbles<T>(chunk)), stored};
  if (stored == 0) result.codes = 0;
  if (__any_sync(kAllLanes, nan_group)) {
    const auto special = encode_nan_group<S, T>(chunk);
    if (nan_group) result = special;
  }
  return result;
}

/// One token, assembled in shared memory before it is stored. Laid out like a block of one token.
template <class S>
struct alignas(kChunkBytes) Image {
  static constexpr int kBytes = S::kPacked.bytes();
  static constexpr int kScales = static_cast<int>(S::kPacked.scales_at(0, 1)), kRope = static_cast<int>(S::kPacked.rope_at(0));
  std::byte bytes[kBytes];
};

template <class S>
__device__ inline void put_codes(Image<S>& image, int pass, unsigned lane, const Encoded<typename S::Codes>& encoded) {
  store_by<typename S::Codes>(image.bytes + pass * S::kCodeStep + lane * S::kCodeBytes, encoded.codes);
  if (lane % S::kGroupLanes != 0) return;
  using Scale = std::conditional_t<S::kScaleBytes == 4, std::uint32_t, std::uint8_t>;
  std::byte* scale = image.bytes + Image<S>::kScales + pass * S::kScaleStep + lane / S::kGroupLanes * S::kScaleBytes;
  store_by<Scale>(scale, static_cast<Scale>(encoded.scale));
}

template <class S, class T>
__device__ inline void put_rope(Image<S>& image, unsigned lane, const Chunk& chunk) {
  if (S::kPaddingBytes > 0 && lane == 0) {
    for (int i = S::kPacked.groups() * S::kScaleBytes; i < S::kPacked.scale_bytes; ++i) image.bytes[Image<S>::kScales + i] = std::byte{0};
  }
  if (!S::has_rope(lane)) return;
  typename S::Rope rope;
#pragma unroll
  for (int pair = 0; pair < S::kValues / 2; ++pair) rope.element[pair] = bf16_pair<T>(chunk, pair);
  store_by<typename S::Rope>(image.bytes + Image<S>::kRope + lane * sizeof rope, rope);
}

/// Lanes begin at a line of the cache, so each line takes one memory transaction. Every sector is written whole, except those at the ends
/// of a token.
template <class S, bool kAligned>
__device__ inline void store_image(const Token<std::byte>& token, const Image<S>& image, unsigned lane) {
  using Whole = std::conditional_t<Image<S>::kBytes % kChunkBytes == 0, Chunk, std::uint64_t>;
  using Unit = CacheUnit<kAligned, Whole>;
  constexpr int kUnit = sizeof(Unit), kStep = S::kLanes * kUnit, kLine = kStep < kLineBytes ? kStep : kLineBytes;
  static_assert(Image<S>::kBytes % kUnit == 0 && Image<S>::kScales % kUnit == 0);
  const int first = static_cast<int>(lane) * kUnit - static_cast<int>(reinterpret_cast<std::uintptr_t>(token.codes) % kLine);
  std::byte *codes = token.codes + first, *scales = token.scales + (first - Image<S>::kScales);
#pragma unroll
  for (int step = 0; step < Image<S>::kBytes + kLine - kUnit; step += kStep) {
    const int at = first + step;
    if (at < 0 || at >= Image<S>::kBytes) continue;
    store_by<Unit>((at < Image<S>::kScales ? codes : scales) + step, load_by<Unit, Unit>(image.bytes + at));
  }
}

template <class S, class T, bool kAligned>
__device__ inline void quantize_token(const QuantizeParams& params, std::int64_t at, std::int64_t slot, unsigned lane, Image<S>& image) {
  // The load of the row does not wait for the slot. If the token has no slot, the row was loaded in vain.
  const bool there = at < params.tokens;
  const std::byte* row = params.rows + at * params.row_stride + lane * kChunkBytes;
  Chunk chunks[S::kPasses] = {}, rope{};
#pragma unroll
  for (int pass = 0; pass < S::kPasses; ++pass) {
    if (there && S::has_codes(pass, lane)) chunks[pass] = load_by<Chunk, RowUnit<kAligned, T>>(row + pass * S::kRowStep);
  }
  if (there && S::has_rope(lane)) rope = load_by<Chunk, RowUnit<kAligned, T>>(row + S::kCodeChunks * kChunkBytes);
#pragma unroll
  for (int pass = 0; pass < S::kPasses; ++pass) {
    Encoded<typename S::Codes> encoded;
    if constexpr (S::kE4m3) {
      encoded = encode_e4m3<S, T>(chunks[pass], params.exact);
    } else {
      encoded = encode_e2m1<S, T>(chunks[pass]);
    }
    if (S::has_codes(pass, lane)) put_codes<S>(image, pass, lane, encoded);
  }
  put_rope<S, T>(image, lane, rope);
  __syncwarp();  // all lanes wait until every lane has written its part of the image
  if (has_slot(params, slot)) store_image<S, kAligned>(token_at<S>(params, slot, 0), image, lane);
  __syncwarp();  // all lanes wait until every lane has read the image; the next token overwrites it
}

template <CacheFormat kFormat, class T, bool kAligned>
__global__ void __launch_bounds__(kThreads) quantize(const __grid_constant__ QuantizeParams params) {
  using S = Shape<kFormat, T>;
  __shared__ Image<S> images[kThreads / S::kLanes];  // (token of the block)
  Image<S>& image = images[threadIdx.x / S::kLanes];
  for_each_token<S>(
      params, [&](std::int64_t at, std::int64_t slot, unsigned lane) { quantize_token<S, T, kAligned>(params, at, slot, lane, image); });
}

}  // namespace fovea::gpu::portable::conversion
