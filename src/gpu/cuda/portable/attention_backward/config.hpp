// SPDX-License-Identifier: Apache-2.0
/// Constants of a backward kernel that follow from its row of tuning.hpp.
#pragma once

#include "gpu/cuda/portable/attention_backward/tuning.hpp"

namespace fovea::gpu::portable::attention_backward {

/// Gradients that a kernel computes: those of its rows.
enum class Gradients { dq, dk_dv, dk, dv };

template <class Element_, Tuning kTuning, Gradients kGradients>
struct TunedConfig {
  using Element = Element_;
  static constexpr bool kRowsAreQueries = kGradients == Gradients::dq;
  static constexpr bool kOfScores = kGradients != Gradients::dv;                                    // dq or dk: by ds
  static constexpr bool kOfValues = kGradients == Gradients::dv || kGradients == Gradients::dk_dv;  // dv: by p
  static constexpr int kHeadDimQk = kTuning.head_dim_qk, kHeadDimV = kTuning.head_dim_v;
  static constexpr Tiles kTiles = kRowsAreQueries ? kTuning.queries : kTuning.keys;
  static constexpr int kBlocks = kTiles.blocks, kWarpRows = 16 * kBlocks, kRows = kTiles.rows();
  static constexpr int kColumns = kTiles.columns, kStages = kTiles.stages, kThreads = 32 * kWarps;
  static_assert(kHeadDimQk % 32 == 0 && kHeadDimV % 32 == 0 && kColumns % 16 == 0 && 64 % kColumns == 0);
  static_assert(kStages == 1 || kStages == 2);
};

template <class Element, int kIndex, Gradients kGradients>
using Config = TunedConfig<Element, Tuning(kTunings[kIndex]), kGradients>;

}  // namespace fovea::gpu::portable::attention_backward
