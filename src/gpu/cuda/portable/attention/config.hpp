// SPDX-License-Identifier: Apache-2.0
/// Constants of a forward kernel, from its row of tuning.hpp, and its launch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "gpu/cuda/portable/attention/biased/tuning.hpp"
#include "gpu/cuda/portable/attention/params.hpp"
#include "gpu/cuda/portable/attention/tuning.hpp"
#include "gpu/launch.hpp"

namespace fovea::gpu::portable::attention {

inline constexpr int kLimit = 1 << 30;  // tokens of a tensor, and work tiles: they are counted in ints

template <class Element_, Tuning kRow>
struct TunedConfig {
  using Element = Element_;
  using ValueElement = Element;
  static constexpr bool kMasked = false;
  static constexpr bool kBiased = false, kTakesBias = false, kTakesDropout = false;  // kBiased: ALiBi, and what it takes
  static constexpr Tuning kTuning = kRow;
  static constexpr bool kLists = false;  // key tiles are those that lists name (gpu/cuda/common/block_lists.cuh)
  static constexpr int kHeadDimQk = kTuning.head_dim_qk, kHeadDimV = kTuning.head_dim_v;
  static constexpr int kBlocks = kTuning.blocks, kKeyTile = kTuning.key_tile, kStages = kTuning.stages;
  static constexpr int kWarpRows = 16 * kBlocks, kRowTile = kTuning.row_tile(), kThreads = 32 * kTuning.warps;
  static_assert(kHeadDimQk % 32 == 0 && kHeadDimV % 32 == 0 && kKeyTile % 16 == 0);
  static_assert(kHeadDimV <= kHeadDimQk);  // results leave through the queries' place
  static_assert(kStages == 1 || kStages == 2);
};

template <class Element, int kIndex>
using Config = TunedConfig<Element, Tuning(kTunings[kIndex])>;

template <class Element, int kIndex>
struct MaskedConfig : Config<Element, kIndex> {
  static constexpr bool kMasked = true;
};

template <class Element, int kIndex>
struct BiasedConfig : TunedConfig<Element, Tuning(kBiasedTunings[kIndex])> {
  static constexpr bool kBiased = true, kTakesBias = kBiasedTunings[kIndex].takes_bias,
                        kTakesDropout = kBiasedTunings[kIndex].takes_dropout;
};

/// The launch of a kernel, which the build instantiates for the rows of tuning.hpp.
template <class Config>
CudaStatus launch_attend(const Params& params, int ctas, int ordinal, Stream stream);

}  // namespace fovea::gpu::portable::attention
