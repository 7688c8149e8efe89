// SPDX-License-Identifier: Apache-2.0
/// Coded rows become a key tile: value = code * scale in f32, rounded once.
#pragma once

#include <type_traits>

#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/common/quantize.cuh"
#include "gpu/cuda/portable/latent_attention/storage.cuh"

namespace fovea::gpu::portable::latent_attention {

template <class T>
__device__ inline T load(const std::byte* from) {
  return *reinterpret_cast<const T*>(from);
}

/// Compile-time constants of a kind of rows, for decoding.
template <RowKind kKind, int kHeadDim>
struct CodedRow {
  static constexpr int kCodes = kKind == RowKind::e4m3 ? kHeadDim : kKind == RowKind::v4 ? 448 : kKind == RowKind::plain ? 0 : 512;
  static constexpr int kRopeAt = kKind == RowKind::v32 ? 528 : kCodes;  // 16-bit values behind codes and the scales beside them
  static constexpr bool kPossible = kKind == RowKind::e4m3 || kKind == RowKind::plain || (kKind == RowKind::v32) == (kHeadDim == 576);
};

/// The scale of the i-th 16 codes of a row.
template <RowKind kKind>
__device__ __forceinline__ float scale_of(const std::byte* row, int i) {
  if constexpr (kKind == RowKind::v32) return load<float>(row + 512 + i / 8 * 4);   // of 128 values
  constexpr int kShift = kKind == RowKind::v4 ? 2 : kKind == RowKind::v41 ? 1 : 0;  // of 64, 32 or 16
  const auto code = static_cast<std::uint32_t>(row[kScalesAt + (i >> kShift)]);
  return kKind == RowKind::fp4 ? floats_from_halves(halves_from_e4m3(code)).x * kE2m1Unit : f32_from_ue8m0(code);
}

template <class Element>
__device__ inline std::uint32_t scaled(std::uint32_t halves, float scale) {
  const float2 values = floats_from_halves(halves);
  return pack<Element>(values.x * scale, values.y * scale);
}

/// 16 codes of a row and their scale.
template <RowKind kKind>
struct Codes {
  std::conditional_t<kKind == RowKind::fp4, uint2, uint4> words;
  float scale;

  /// The i-th ones.
  __device__ __forceinline__ void load_from(const std::byte* row, int i) {
    words = load<decltype(words)>(row + static_cast<int>(sizeof words) * i);
    scale = kKind == RowKind::e4m3 ? 1 : scale_of<kKind>(row, i);
  }
  /// `swapped`: the last eight first.
  template <class Element>
  __device__ __forceinline__ void decode(bool swapped, std::uint32_t (&values)[8]) const {
    if constexpr (kKind == RowKind::fp4) {
      const std::uint32_t first = swapped ? words.y : words.x, second = swapped ? words.x : words.y;
#pragma unroll
      for (int j = 0; j < 8; ++j) values[j] = scaled<Element>(halves_from_e2m1((j < 4 ? first : second) >> j % 4 * 8 & 0xff), scale);
    } else {
      const std::uint32_t ordered[4] = {swapped ? words.z : words.x, swapped ? words.w : words.y, swapped ? words.x : words.z,
                                        swapped ? words.y : words.w};
#pragma unroll
      for (int j = 0; j < 8; ++j) values[j] = scaled<Element>(halves_from_e4m3(ordered[j / 2] >> j % 2 * 16 & 0xffff), scale);
    }
  }
};

/// Called by the eight threads of a row. At any time they store eight chunks of different banks.
template <class Config, RowKind kKind>
__device__ __forceinline__ void decode_row(const std::byte* row, std::uint32_t keys, int swizzle, int thread) {
  using Coded = CodedRow<kKind, Config::kHeadDim>;
  if constexpr (Coded::kPossible) {
    const int swapped = thread / 4;
    const std::uint32_t first = keys + static_cast<std::uint32_t>((2 * thread + swapped) ^ swizzle) * 16;
    const std::uint32_t second = keys + static_cast<std::uint32_t>((2 * thread + 1 - swapped) ^ swizzle) * 16;
    constexpr int kChunks = Coded::kCodes / 16, kAtOnce = Config::kBlocks ? 4 : 1;  // loads before the first value is computed
    const auto has = [&](int j) { return kChunks % (8 * kAtOnce) == 0 || thread + j < kChunks; };
#pragma unroll(Config::kBlocks ? 1 : 2)
    for (int begin = 0; begin < kChunks; begin += 8 * kAtOnce) {
      if (!has(begin)) break;
      Codes<kKind> codes[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (i == 0 || has(begin + 8 * i)) codes[i].load_from(row, thread + begin + 8 * i);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int j = begin + 8 * i;
        if (i > 0 && !has(j)) break;
        std::uint32_t x[8];
        codes[i].template decode<typename Config::Element>(swapped != 0, x);
        store_shared_128(first + 32 * j, {x[0], x[1], x[2], x[3]});
        store_shared_128(second + 32 * j, {x[4], x[5], x[6], x[7]});
      }
    }
    const std::uint32_t rope = keys + 2 * Coded::kCodes + static_cast<std::uint32_t>(thread ^ swizzle) * 16;
#pragma unroll 1
    for (int j = 0; j < (Config::kHeadDim - Coded::kCodes) / 8; j += 8) {
      store_shared_128(rope + 16 * j, load<uint4>(row + Coded::kRopeAt + 16 * (thread + j)));
    }
  }
}

/// Called by the eight threads of a row.
template <class Config>
__device__ __forceinline__ void decode_key(const Params& params, const Storage<Config>& storage, int stage, int row) {
  const int thread = static_cast<int>(threadIdx.x) % 8;
  const int source = params.listed ? storage.sources[stage][row] : kMain;
  const std::byte* codes = storage.codes(params, stage, row);
  const std::uint32_t keys = storage.keys(0) + static_cast<std::uint32_t>(row * KeyRows<Config>::kRowBytes);
  if (source == kAbsent) {  // its codes may be older ones
#pragma unroll 1
    for (int j = 0; j < Config::kHeadDim / 8; j += 8) store_shared_128(keys + 16 * (thread + j), {});
    return;
  }
  switch (source == kExtra ? params.extra.format.kind : params.main.format.kind) {
    case RowKind::plain: return decode_row<Config, RowKind::plain>(codes, keys, row % 8, thread);
    case RowKind::e4m3: return decode_row<Config, RowKind::e4m3>(codes, keys, row % 8, thread);
    case RowKind::v32: return decode_row<Config, RowKind::v32>(codes, keys, row % 8, thread);
    case RowKind::v4: return decode_row<Config, RowKind::v4>(codes, keys, row % 8, thread);
    case RowKind::v41: return decode_row<Config, RowKind::v41>(codes, keys, row % 8, thread);
    case RowKind::fp4: return decode_row<Config, RowKind::fp4>(codes, keys, row % 8, thread);
  }
}

/// Called by the CTA, between barriers.
template <class Config>
__device__ __forceinline__ void decode_tile(const Params& params, const Storage<Config>& storage, int stage) {
#pragma unroll 1
  for (int first = 0; first < Config::kKeys; first += kThreads / 8) {
    decode_key(params, storage, stage, first + static_cast<int>(threadIdx.x) / 8);
  }
}

}  // namespace fovea::gpu::portable::latent_attention
