// SPDX-License-Identifier: Apache-2.0
/// Parameters of a launch of 8-bit attention, and the constants of a kernel, from its row of tuning.hpp.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "gpu/cuda/common/quantized/scales.cuh"
#include "gpu/cuda/common/value_tiles.hpp"
#include "gpu/cuda/sm90/attention/config.hpp"
#include "gpu/cuda/sm90/dense/params.hpp"
#include "gpu/cuda/sm90/quantized_attention/tuning.hpp"
#include "gpu/launch.hpp"

namespace fovea::gpu::sm90::quantized_attention {

/// Those of dense attention without splits, and with one query head in a query tile. `scale_log2` may be
/// negative.
struct Params : dense::Params {
  Codes codes{};
  std::int64_t key_block_stride = 0;       ///< of k_scale, between blocks of keys
  const std::byte* value_tiles = nullptr;  ///< V^T by key tiles: gpu/cuda/common/value_tiles.hpp
  DType out_dtype{};
};

template <class Config>
class WorkScales;  // work_scales.cuh

/// `ValueElement`: __half or __nv_fp8_e4m3.
template <class ValueElement, int kIndex>
struct Config : attention::TileConfig<std::int8_t, ValueElement, Tuning(tunings_of(sizeof(ValueElement) == 1)[kIndex])> {
  using Params = quantized_attention::Params;
  using WorkTileData = WorkScales<Config>;
  using Base = attention::TileConfig<std::int8_t, ValueElement, Tuning(tunings_of(sizeof(ValueElement) == 1)[kIndex])>;
  static constexpr bool kOwnScale = true, kOwnEdges = true;
  /// Blocks of a key tile, with a scale each.
  static constexpr int kKeyBlocks = Base::kKeyTile / static_cast<int>(Int8Groups::kKBlock);
  static_assert(Base::kKeyTile % Int8Groups::kKBlock == 0 && Base::kHeadDimQk == Base::kHeadDimV && !Base::kOverlap);
  static_assert(!Base::k8BitValues || Base::kKeyTile == kQuantizedValueKeys);
};

/// The launch of a kernel, which the build instantiates for the rows of tuning.hpp.
template <class Config>
CudaStatus launch_attend(const Params& params, int ctas, int ordinal, Stream stream);

}  // namespace fovea::gpu::sm90::quantized_attention
