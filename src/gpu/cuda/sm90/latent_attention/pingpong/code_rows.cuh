// SPDX-License-Identifier: Apache-2.0
/// The layout of a row of codes, and how lanes load it. Four lanes share a row; each has 16 codes of every slice.
#pragma once

#include <type_traits>

#include "gpu/cuda/sm90/latent_attention/decode.cuh"
#include "gpu/cuda/sm90/latent_attention/keys.cuh"

namespace fovea::gpu::sm90::latent {

/// The dummy row, which is read for absent keys, without a branch.
alignas(16) __device__ constexpr std::byte kNoRow[(kHalfSlices + 1) * kSlice]{};

/// Mask that flips the signs of e4m3 rows under a negative scale. Consumers apply the magnitude of the scale.
__device__ inline std::uint32_t flip_of(const Params& params) {
  return params.cache_scale != nullptr && *params.cache_scale < 0 ? 0x80808080 : 0;
}

/// What a lane loads of half a row: 16 codes of each slice, and the scales of all slices as they are stored.
struct HalfRow {
  std::uint32_t codes[kHalfSlices + 1][4];
  std::uint32_t scales[4];
};

template <class Config, Row kRow>
struct CodeRows {
  using Format = Codes<kRow, Config::kHeadDim>;

  /// Slices of codes in a half, and of the rotary part. The left half has codes alone.
  static __device__ constexpr int slices(int half) { return half == 0 ? kHalfSlices : Format::kCount / kSlice - kHalfSlices; }
  static __device__ constexpr int rope_slices(int half) { return half == 0 ? 0 : Config::kSlices - Format::kCount / kSlice; }
  static __device__ constexpr int rope_at() {
    if constexpr (kRow == Row::e4m3) {
      return 0;
    } else {
      return static_cast<int>(format_of<kRow>().rope_at(0));
    }
  }

  struct Source {
    const std::byte *codes, *scales;
  };
  /// `row`: null for an absent key. The address depends on `zero`.
  static __device__ __forceinline__ Source source_of(const std::byte* row, int scales_at, int half, int quarter, std::uint32_t zero = 0) {
    if (row == nullptr) return {kNoRow + zero, kNoRow + zero};
    // Scales that follow the codes are found without the token's offset.
    const std::byte* scales = row + (kRow == Row::v32 ? Format::kCount : scales_at);
    return {row + (half * (kHalfSlices * kSlice) + quarter * 16) * Format::kBits / 8, scales + half * scale_words<kRow>() * 4};
  }

  /// kLine: the whole line of a slice is prefetched into L2, because its other half is the next slice.
  template <bool kLine = false>
  static __device__ __forceinline__ void load_slice(const Source& source, int slice, HalfRow& to) {
    load_words<Format::kBits / 2, kLine>(source.codes + slice * (kSlice * Format::kBits / 8), to.codes[slice]);
  }
  static __device__ __forceinline__ void load_scales(const Source& source, HalfRow& to) {
    load_words<scale_words<kRow>()>(source.scales, to.scales);
  }
  static __device__ __forceinline__ void load_codes(const Source& source, int half, HalfRow& to) {
    load_scales(source, to);
#pragma unroll
    for (int slice = 0; slice < slices(half); ++slice) load_slice(source, slice, to);
  }

  /// 16 codes become two chunks, side by side. `flip`: of flip_of().
  static __device__ __forceinline__ void decode_slice(const HalfRow& from, int slice, int quarter, std::uint32_t flip,
                                                      std::uint32_t (&chunks)[2][4]) {
    std::uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = kRow == Row::e4m3 ? from.codes[slice][i] ^ flip : from.codes[slice][i];
    decode<kRow, typename Config::Element>(words, scale_of<kRow>(from.scales, slice, quarter), chunks);
  }
};

}  // namespace fovea::gpu::sm90::latent
