// SPDX-License-Identifier: Apache-2.0
/// Constants of a forward kernel that follow from its row of tuning.hpp.
#pragma once

#include "gpu/cuda/sm90/attention/tuning.hpp"

namespace fovea::gpu::sm90::attention {

inline constexpr int kSlice = 64;          // columns of a slice: rows of 128 bytes
inline constexpr int kRowBytes = 128;      // of a slice
inline constexpr int kWarpgroupRows = 64;  // query rows of a consumer warpgroup
inline constexpr int kLimit = 1 << 30;     // tokens of a tensor, and work tiles: they are counted in ints
constexpr int slices_of(int columns) { return (columns + kSlice - 1) / kSlice; }

/// kTransform_: scores are softcapped, or their scale is negative.
template <class Element_, int kTuning_, bool kTransform_>
struct Config {
  using Element = Element_;
  static constexpr Tuning kTuning = kTunings[kTuning_];
  static constexpr bool kTransform = kTransform_;
  static constexpr int kHeadDimQk = kTuning.head_dim_qk, kHeadDimV = kTuning.head_dim_v;
  static constexpr int kSlicesQk = slices_of(kHeadDimQk), kSlicesV = slices_of(kHeadDimV);
  static constexpr int kKeyTile = kTuning.key_tile, kRowTile = kTuning.row_tile();
  static constexpr int kKeyStages = kTuning.key_stages, kValueStages = kTuning.value_stages, kQueryBuffers = kTuning.query_buffers;
  static constexpr int kCluster = kTuning.cluster;
  static constexpr int kKeyPart = kKeyTile / kCluster;  // keys that a CTA loads for all of its cluster
  static constexpr int kMathThreads = 128 * kTuning.warpgroups, kThreads = kMathThreads + 128;
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kMathRegisters = kTuning.math_registers;
  static constexpr int kLoadRegisters = (kLaunchRegisters * kThreads - kMathRegisters * kMathThreads) / 128 / 8 * 8;
  static constexpr int kQuerySliceBytes = kRowTile * kRowBytes, kKeySliceBytes = kKeyTile * kRowBytes;
  static constexpr int kQueryBytes = kSlicesQk * kQuerySliceBytes;
  static constexpr int kKeyBytes = kSlicesQk * kKeySliceBytes, kValueBytes = kSlicesV * kKeySliceBytes;
  static_assert(kKeyPart % 8 == 0 && kKeyTile % 16 == 0 && kHeadDimQk % 16 == 0 && kHeadDimV % 16 == 0);
  static_assert(kSlicesV <= kSlicesQk);  // results leave through the buffer of their queries
  static_assert(kLoadRegisters >= 24);
};

}  // namespace fovea::gpu::sm90::attention
