// SPDX-License-Identifier: Apache-2.0
/// Constants of a forward kernel, from its row of tuning.hpp, and its launch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "gpu/cuda/sm100/attention/params.hpp"
#include "gpu/cuda/sm100/attention/tuning.hpp"
#include "gpu/cuda/sm100/descriptors.hpp"
#include "gpu/launch.hpp"

namespace fovea::gpu::sm100::attention {

inline constexpr int kTiles = 2;       // query tiles of a CTA, which take turns
inline constexpr int kTileRows = 128;  // of a query tile, and of a key tile

/// First warps of the roles. A softmax warp and a correction warp reach the lanes of their number modulo 4.
inline constexpr int kSoftmaxWarps = 4, kCorrectionWarp = kTiles * kSoftmaxWarps, kMmaWarp = 12, kLoadWarp = 13, kWarps = 16;

template <class Element_, int kTuning_>
struct Config {
  using Element = Element_;
  static constexpr Tuning kTuning = kTunings[kTuning_];
  static constexpr int kHeadDimQk = kTuning.head_dim_qk, kHeadDimV = kTuning.head_dim_v, kStages = kTuning.stages;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kSliceColumns = kSliceBytes / 2, kSliceTileBytes = kTileRows * kSliceBytes;  // of a tile's slice
  static constexpr int kSlicesQk = kHeadDimQk / kSliceColumns, kSlicesV = kHeadDimV / kSliceColumns;
  static constexpr int kQueryBytes = kSlicesQk * kSliceTileBytes, kValueBytes = kSlicesV * kSliceTileBytes;
  static constexpr int kStageBytes = std::max(kQueryBytes, kValueBytes);

  // Columns of tensor memory. Weights take the first half of their scores.
  static constexpr int score_column(int tile) { return tile * kTileRows; }
  static constexpr int sum_column(int tile) { return (kTiles + tile) * kTileRows; }

  static constexpr MmaElement kElement = std::is_same_v<Element, __half> ? MmaElement::f16 : MmaElement::bf16;
  static constexpr std::uint32_t kScoreMma = instruction_descriptor({kElement, Major::k, Major::k, kTileRows, kTileRows});
  static constexpr std::uint32_t kValueMma = instruction_descriptor({kElement, Major::k, Major::mn, kTileRows, kHeadDimV});

  static_assert(kHeadDimQk % kSliceColumns == 0 && kHeadDimV % kSliceColumns == 0 && kTuning.key_tile == kTileRows);
  static_assert(kTuning.row_tile() == kTiles * kTileRows && sum_column(kTiles - 1) + kHeadDimV <= kTensorColumns);
  static_assert(kStages >= 2);  // MMAs read values of one key tile and keys of the next in turns
  static_assert(256 * kTuning.softmax_registers + 128 * (kTuning.correction_registers + kTuning.other_registers) <= 65536);
};

/// The launch of a kernel, which the build instantiates for the rows of tuning.hpp.
template <class Config>
CudaStatus launch_attend(const Params& params, int ctas, int ordinal, Stream stream);

}  // namespace fovea::gpu::sm100::attention
