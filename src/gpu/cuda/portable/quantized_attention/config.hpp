// SPDX-License-Identifier: Apache-2.0
/// Constants of an 8-bit kernel, from its row of tuning.hpp; its parameters and its launch.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "gpu/cuda/common/quantized/scales.cuh"
#include "gpu/cuda/portable/attention/params.hpp"
#include "gpu/cuda/portable/quantized_attention/tuning.hpp"
#include "gpu/launch.hpp"

namespace fovea::gpu::portable::quantized_attention {

/// `ValueElement`: __half or __nv_fp8_e4m3.
template <class ValueElement_, Tuning kRow>
struct TunedConfig {
  using Element = std::int8_t;
  using ValueElement = ValueElement_;
  static constexpr bool kLists = false, kMasked = false;  // neither block masks nor packed ones
  static constexpr Tuning kTuning = kRow;
  static constexpr int kHeadDim = kTuning.head_dim, kBlocks = kTuning.blocks, kKeyTile = kTuning.key_tile, kStages = kTuning.stages;
  static constexpr int kWarpRows = 16 * kBlocks, kRowTile = kTuning.row_tile(), kThreads = 32 * kTuning.warps;
  static constexpr int kValueSize = sizeof(ValueElement);
  /// Columns of rows in shared memory, in units of two bytes.
  static constexpr int kCodeColumns = kTuning.code_row_bytes() / 2, kValueColumns = kTuning.value_row_bytes(kValueSize) / 2;
  static_assert(kHeadDim % 32 == 0 && 64 % kKeyTile == 0 && kKeyTile % 16 == 0);
  static_assert(kStages == 1 || kStages == 2);
};

template <class ValueElement, int kIndex>
using Config = TunedConfig<ValueElement, Tuning(kTunings[kIndex])>;

/// Without splits, and with one query head in a query tile. `scale_log2` may be negative.
struct Params : attention::Params {
  Codes codes{};
  DType out_dtype{};
};

/// The launch of a kernel, which the build instantiates for the rows of tuning.hpp.
template <class Config>
CudaStatus launch_attend(const Params& params, int ctas, int ordinal, Stream stream);

/// Target of the code that a device runs: 89 is compute capability 8.9. All kernels of a build have the same targets.
template <class Config>
int target_on(int ordinal);

}  // namespace fovea::gpu::portable::quantized_attention
