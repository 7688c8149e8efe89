// SPDX-License-Identifier: Apache-2.0
/// Constants of an 8-bit kernel that follow from its row of tuning.hpp.
#pragma once

#include <cstdint>

#include "gpu/cuda/common/value_tiles.hpp"
#include "gpu/cuda/sm90/attention/config.hpp"
#include "gpu/cuda/sm90/quantized_attention/params.hpp"
#include "gpu/cuda/sm90/quantized_attention/tuning.hpp"

namespace fovea::gpu::sm90::quantized_attention {

template <class Config>
class WorkScales;  // work_scales.cuh

/// `ValueElement`: __half or __nv_fp8_e4m3.
template <class ValueElement, int kIndex>
struct Config : attention::TileConfig<std::int8_t, ValueElement, tunings_of(sizeof(ValueElement) == 1)[kIndex]> {
  using Params = quantized_attention::Params;
  using WorkTileData = WorkScales<Config>;
  using Base = attention::TileConfig<std::int8_t, ValueElement, tunings_of(sizeof(ValueElement) == 1)[kIndex]>;
  static constexpr bool kOwnScale = true, kOwnEdges = true;
  static constexpr int kKeyBlocks = Base::kKeyTile / static_cast<int>(Int8Groups::kKBlock);  ///< of a key tile, with a scale each
  static_assert(Base::kKeyTile % Int8Groups::kKBlock == 0 && Base::kHeadDimQk == Base::kHeadDimV && !Base::kOverlap);
  static_assert(!Base::k8BitValues || Base::kKeyTile == kQuantizedValueKeys);
};

}  // namespace fovea::gpu::sm90::quantized_attention
