// SPDX-License-Identifier: Apache-2.0
/// Constants of the kernel for wide heads, from its row of tuning.hpp, and its launch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "gpu/cuda/portable/wide_attention/params.hpp"
#include "gpu/cuda/portable/wide_attention/tuning.hpp"
#include "gpu/launch.hpp"

namespace fovea::gpu::portable::wide_attention {

/// `kPaged_`: keys and values lie in a cache.
template <class Element_, int kRow, bool kPaged_>
struct Config {
  using Element = Element_;
  static constexpr Tuning kTuning = kTunings[kRow];
  static constexpr bool kPaged = kPaged_;
  static constexpr int kBlocks = kTuning.blocks, kKeyTile = kTuning.key_tile;
  static constexpr int kRowTile = kTuning.row_tile(), kGroupRows = 16 * kBlocks;
  static constexpr int kGroups = kTuning.row_groups, kThreads = 32 * kTuning.warps();
  static constexpr int kColumns = kHeadDim / kColumnWarps;  // of a warp's results
  static constexpr int kPartKeys = kKeyTile / kParts;       // keys that a warp multiplies
  static constexpr int kPartColumns = kHeadDim / kParts;    // in so many columns
  static constexpr int kOwnKeys = kPartKeys / kParts;       // of those, the keys whose scores it turns into probabilities
  static_assert(kOwnKeys == 8 || kOwnKeys == 16);
};

/// The launch of a kernel, which the build instantiates for the rows of tuning.hpp.
template <class Config>
CudaStatus launch_attend(const Params& params, int ctas, int ordinal, Stream stream);

}  // namespace fovea::gpu::portable::wide_attention
