// SPDX-License-Identifier: Apache-2.0
/// Shared memory of a CTA.
#pragma once

#include <cstddef>

#include "gpu/cuda/common/shared.cuh"
#include "gpu/cuda/portable/paged_attention/tile_scheduler.cuh"

namespace fovea::gpu::portable::paged_attention {

/// Layouts of keys and values, and of queries.
template <class Config>
using CacheRows = SwizzledRows<Config::kRowBytes / 2>;
template <class Config>
using QueryRows = SwizzledRows<Config::kHeadDim>;

__device__ inline std::uint32_t load_shared_32(std::uint32_t shared) {
  std::uint32_t x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(shared) : "memory");
  return x;
}

/// Neighbouring words.
template <int kCount>
__device__ __forceinline__ void load_shared_words(std::uint32_t (&to)[kCount], std::uint32_t shared) {
  static_assert(kCount == 1 || kCount == 2);
  if constexpr (kCount == 1) {
    to[0] = load_shared_32(shared);
  } else {
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(shared) : "memory");
  }
}

template <class Config>
struct Storage {
  alignas(128) std::byte q[2 * Config::kRowTile * Config::kHeadDim];  // QueryRows
  RowState states[Config::kResults][Config::kRowTile];
  float factors[Config::kFactors * Config::kRowTile];  // of the queries in `q`, then the sums of their elements
  alignas(128) WorkTile works[2];                      // the current one and the next

  /// Keys and values of a stage, in CacheRows. The stages follow this struct.
  __device__ std::uint32_t keys(int stage) const { return shared_address(this + 1) + stage * Config::kStageBytes; }
  __device__ std::uint32_t values(int stage) const { return keys(stage) + Config::kTileBytes; }
  /// Scales of the keys, Config::kKeyScales bytes each, then those of the values, then BlockPowers.
  __device__ std::uint32_t scales(int stage) const { return keys(stage) + 2 * Config::kTileBytes; }
  /// Results of a row over one warp's keys, or over all keys. They overwrite the stages.
  __device__ float* results(int of, int row) {
    return reinterpret_cast<float*>(this + 1) + (of * Config::kRowTile + row) * Config::kResultRow;
  }
};

}  // namespace fovea::gpu::portable::paged_attention
