// SPDX-License-Identifier: Apache-2.0
/// Constants of the kernel of all gradients with ALiBi, its parameters and launches.
#pragma once

#include "gpu/cuda/common/score_bias.hpp"
#include "gpu/cuda/sm90/attention_backward/alibi/tuning.hpp"
#include "gpu/cuda/sm90/attention_backward/config.hpp"

namespace fovea::gpu::sm90::attention_backward::alibi {

struct Params : attention_backward::Params {
  ScoreBiasParams bias{};
  float units_of_slope = 1;  ///< a slope in units of products is this many times the natural one
};

template <class Element, int kRow>
struct Config : attention_backward::Config<Element, kRow, false> {
  using Params = alibi::Params;
  static constexpr bool kAlibi = true;
};

template <class Config>
CudaStatus launch_with_alibi(const Params& params, int ordinal, Stream stream);
/// Rows that masked values or a sink have made NaN, and the gradient of sinks.
CudaStatus launch_finish(const Params& params, DType dtype, Stream stream);

}  // namespace fovea::gpu::sm90::attention_backward::alibi
