// SPDX-License-Identifier: Apache-2.0
/// Shared memory of a CTA.
#pragma once

#include <cstddef>

#include "gpu/cuda/common/shared.cuh"
#include "gpu/cuda/portable/latent_attention/config.hpp"
#include "gpu/cuda/portable/latent_attention/work.cuh"

namespace fovea::gpu::portable::latent_attention {

/// Whether rows are decoded in shared memory. Blocks have a kernel for each kind.
template <class Config>
__device__ __forceinline__ bool is_coded(const Params& params) {
  return Config::kBlocks ? Config::kCoded : params.coded_row > 0;
}

template <class Config>
using KeyRows = SwizzledRows<Config::kHeadDim>;

/// Where a key comes from.
enum Source : std::uint8_t { kAbsent, kMain, kExtra };

/// Products of a lane: [eight keys][lane].
template <class Config, bool kBlocks = Config::kBlocks>
struct Exchange {
  alignas(128) float4 products[Config::kRowGroups][Config::kParts][Config::kKeys / 8][32];
};

template <class Config>
using QueryRows = SwizzledRows<Config::kSharedColumns>;
using ProbabilityRows = SwizzledRows<32>;

/// A warp's region has the products of its other part, then the warp's probabilities.
template <class Config>
struct Exchange<Config, true> {
  alignas(128) std::byte queries[Config::kRowTile * QueryRows<Config>::kRowBytes];
  alignas(128) float4 products[kWarps][4][32];
  float largest[2][Config::kRowTile], sum[2][Config::kRowTile];  // of the scores of every second 32 keys
  float rescale[Config::kRowTile], maximum[Config::kRowTile];
};

template <class Config>
struct Storage : Exchange<Config> {
  alignas(128) std::uint8_t sources[kMostStages][Config::kKeys];
  alignas(128) WorkTile works[2];  // the current one and the next

  /// Keys of a stage, in KeyRows. The stages follow this struct. Coded rows have one such tile, and behind it stages of codes: one with
  /// blocks.
  __device__ std::uint32_t keys(int stage) const { return shared_address(this + 1) + stage * Config::kStageBytes; }
  __device__ const std::byte* codes(const Params& params, int stage, int row) const {
    const int index = (Config::kBlocks ? 0 : stage * Config::kKeys) + row;
    return reinterpret_cast<const std::byte*>(this + 1) + Config::kStageBytes + index * params.coded_row;
  }
};

}  // namespace fovea::gpu::portable::latent_attention
