// SPDX-License-Identifier: Apache-2.0
/// Coded rows become a key tile: value = code * scale in f32, rounded once.
#pragma once

#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/common/quantize.cuh"
#include "gpu/cuda/portable/latent_attention/storage.cuh"

namespace fovea::gpu::portable::latent_attention {

template <class T>
__device__ inline T load(const std::byte* from) {
  return *reinterpret_cast<const T*>(from);
}

/// The scale of the i-th 16 codes of a row.
__device__ inline float scale_of(RowKind kind, const std::byte* row, int i) {
  if (kind == RowKind::e4m3) return 1;
  if (kind == RowKind::v32) return load<float>(row + 512 + i / 8 * 4);       // of 128 values
  const int shift = kind == RowKind::v4 ? 2 : kind == RowKind::v41 ? 1 : 0;  // of 64, 32 or 16
  const auto code = static_cast<std::uint32_t>(row[kScalesAt + (i >> shift)]);
  return kind == RowKind::fp4 ? floats_from_halves(halves_from_e4m3(code)).x * kE2m1Unit : f32_from_ue8m0(code);
}

template <class Element>
__device__ inline std::uint32_t scaled(std::uint32_t halves, float scale) {
  const float2 values = floats_from_halves(halves);
  return pack<Element>(values.x * scale, values.y * scale);
}

/// The i-th 16 values of a row.
template <class Element>
__device__ __forceinline__ void decode(const RowFormat& format, const std::byte* row, int i, std::uint32_t (&values)[8]) {
  if (16 * i >= format.codes) {
    const std::byte* rope = row + (format.kind == RowKind::v32 ? 528 : format.codes) + 2 * (16 * i - format.codes);
    const auto first = load<uint4>(rope), second = load<uint4>(rope + 16);
    values[0] = first.x, values[1] = first.y, values[2] = first.z, values[3] = first.w;
    values[4] = second.x, values[5] = second.y, values[6] = second.z, values[7] = second.w;
    return;
  }
  const float scale = scale_of(format.kind, row, i);
  if (format.kind == RowKind::fp4) {
    const auto words = load<uint2>(row + 8 * i);
#pragma unroll
    for (int j = 0; j < 8; ++j) values[j] = scaled<Element>(halves_from_e2m1((j < 4 ? words.x : words.y) >> j % 4 * 8 & 0xff), scale);
  } else {
    const auto chunk = load<uint4>(row + 16 * i);
    const std::uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
    for (int j = 0; j < 8; ++j) values[j] = scaled<Element>(halves_from_e4m3(words[j / 2] >> j % 2 * 16 & 0xffff), scale);
  }
}

/// Called by the CTA, between barriers. Eight threads decode a row.
template <class Config>
__device__ __forceinline__ void decode_tile(const Params& params, const Storage<Config>& storage, int stage) {
  using Rows = KeyRows<Config>;
  const int row = static_cast<int>(threadIdx.x) / 8;
  const RowFormat& format = params.listed && storage.sources[stage][row] == kExtra ? params.extra.format : params.main.format;
  const std::byte* codes = storage.codes(params, stage, row);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) % 8; i < Config::kHeadDim / 16; i += 8) {
    std::uint32_t x[8];
    decode<typename Config::Element>(format, codes, i, x);
    store_shared_128(storage.keys(0) + static_cast<std::uint32_t>(Rows::offset(row, 2 * i)), {x[0], x[1], x[2], x[3]});
    store_shared_128(storage.keys(0) + static_cast<std::uint32_t>(Rows::offset(row, 2 * i + 1)), {x[4], x[5], x[6], x[7]});
  }
}

}  // namespace fovea::gpu::portable::latent_attention
