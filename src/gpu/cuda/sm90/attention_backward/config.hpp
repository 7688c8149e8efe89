// SPDX-License-Identifier: Apache-2.0
/// Constants of a backward kernel that follow from its row of tuning.hpp.
#pragma once

#include "gpu/cuda/sm90/attention_backward/params.hpp"
#include "gpu/cuda/sm90/attention_backward/tuning.hpp"

namespace fovea::gpu::sm90::attention_backward {

/// kSoftcap_: scores are softcapped.
template <class Element_, int kTuning_, bool kSoftcap_>
struct Config {
  using Element = Element_;
  static constexpr Tuning kTuning = kTunings[kTuning_];
  static constexpr bool kSoftcap = kSoftcap_, kApart = kTuning.apart(), kOwnDq = kTuning.own_dq();
  static constexpr int kKeyTile = kTuning.key_tile;
  static constexpr int kHeadDimQk = kTuning.head_dim_qk, kHeadDimV = kTuning.head_dim_v;
  static constexpr int kSlicesQk = kHeadDimQk / kSliceColumns, kSlicesV = kHeadDimV / kSliceColumns;
  static constexpr int kStages = 2;                          // of Q and dO
  static constexpr int kScoreStages = kOwnDq ? 1 : kStages;  // of dS
  static constexpr int kQuerySliceBytes = kQueryTile * kSliceBytes, kKeySliceBytes = kKeyTile * kSliceBytes;
  static constexpr int kKeyBytes = kSlicesQk * kKeySliceBytes, kValueBytes = kSlicesV * kKeySliceBytes;
  static constexpr int kQueryBytes = kSlicesQk * kQuerySliceBytes, kDoutBytes = kSlicesV * kQuerySliceBytes;
  static constexpr int kScoreBytes = kKeyTile * kSliceBytes;  // of dS: (key, query)
  static constexpr int kSumsOfTile = kQueryTile * kHeadDimQk;
  // Warpgroups: two for scores, dV and dK, mostly one for dQ, one that loads.
  static constexpr bool kDqWarpgroup = !kApart && !kOwnDq;
  static constexpr int kScoreWarpgroups = 2, kThreads = kDqWarpgroup ? 512 : 384;
  static constexpr int kScoreRegisters = kDqWarpgroup ? 208 : 240, kQueryRegisters = 72, kLoadRegisters = 24;
  static_assert(kHeadDimQk % kSliceColumns == 0 && kHeadDimV % kSliceColumns == 0);
  static_assert(128 * (2 * kScoreRegisters + (kDqWarpgroup ? kQueryRegisters : 0) + kLoadRegisters) <= 65536);
  static_assert(kKeyTile == 64 * (kApart ? 1 : kScoreWarpgroups));
  static_assert(!kApart || kHeadDimQk == kHeadDimV);  // each role's results leave through the tile that it alone has read
};

}  // namespace fovea::gpu::sm90::attention_backward
