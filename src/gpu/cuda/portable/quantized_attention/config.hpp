// SPDX-License-Identifier: Apache-2.0
/// Constants of an 8-bit kernel that follow from its row of tuning.hpp.
#pragma once

#include <cstdint>

#include "gpu/cuda/portable/quantized_attention/tuning.hpp"

namespace fovea::gpu::portable::quantized_attention {

/// `ValueElement`: __half or __nv_fp8_e4m3.
template <class ValueElement_, Tuning kRow>
struct TunedConfig {
  using Element = std::int8_t;
  using ValueElement = ValueElement_;
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

}  // namespace fovea::gpu::portable::quantized_attention
