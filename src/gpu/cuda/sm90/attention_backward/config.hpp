// SPDX-License-Identifier: Apache-2.0
/// Constants of a backward kernel that follow from its head dims.
#pragma once

#include "gpu/cuda/sm90/attention_backward/params.hpp"

namespace fovea::gpu::sm90::attention_backward {

/// kHeadDimQk_, kHeadDimV_: multiples of 64, to which smaller ones are padded with zeros. kSoftcap_: scores are softcapped.
template <class Element_, int kHeadDimQk_, int kHeadDimV_, bool kSoftcap_>
struct Config {
  using Element = Element_;
  static constexpr bool kSoftcap = kSoftcap_;
  static constexpr int kHeadDimQk = kHeadDimQk_, kHeadDimV = kHeadDimV_;
  static constexpr int kSlicesQk = kHeadDimQk / kSliceColumns, kSlicesV = kHeadDimV / kSliceColumns;
  static constexpr int kStages = 2;      // of Q and dO, and of dS
  static constexpr int kRowBytes = 128;  // of a slice
  static constexpr int kQuerySliceBytes = kQueryTile * kRowBytes, kKeySliceBytes = kKeyTile * kRowBytes;
  static constexpr int kKeyBytes = kSlicesQk * kKeySliceBytes, kValueBytes = kSlicesV * kKeySliceBytes;
  static constexpr int kQueryBytes = kSlicesQk * kQuerySliceBytes, kDoutBytes = kSlicesV * kQuerySliceBytes;
  static constexpr int kScoreBytes = kKeyTile * kRowBytes;  // of dS: (key, query)
  static constexpr int kSumsOfTile = kQueryTile * kHeadDimQk;
  // Warpgroups: two for scores, dV and dK, one for dQ, one that loads.
  static constexpr int kScoreWarpgroups = 2, kThreads = 512;
  static constexpr int kScoreRegisters = 208, kQueryRegisters = 72, kLoadRegisters = 24;
  static_assert(kHeadDimQk % kSliceColumns == 0 && kHeadDimV % kSliceColumns == 0);
  static_assert(128 * (2 * kScoreRegisters + kQueryRegisters + kLoadRegisters) <= 65536);
};

}  // namespace fovea::gpu::sm90::attention_backward
