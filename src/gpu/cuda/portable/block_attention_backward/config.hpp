// SPDX-License-Identifier: Apache-2.0
/// Constants of the kernels for block masks, their parameters and launches. Their code is that of
/// gpu/cuda/portable/attention_backward.
#pragma once

#include "gpu/cuda/common/gradient/lists.hpp"
#include "gpu/cuda/portable/attention_backward/config.hpp"
#include "gpu/cuda/portable/block_attention_backward/tuning.hpp"

namespace fovea::gpu::portable::block_attention_backward {

struct Params : attention_backward::Params {
  static constexpr bool kLists = true;
  gradient::GradientLists lists{};
};

template <class Element, int kRow>
struct Config : attention_backward::TunedConfig<Element, kTunings[kRow].dense(), kTunings[kRow].of> {
  using Params = block_attention_backward::Params;
  static constexpr bool kLists = true;
};

/// The lists by key tiles, and RowStats of each query row.
CudaStatus launch_prepare(const Params& params, DType dtype, Stream stream);

/// The kernel of a row of tuning.hpp.
template <class Element, int kRow>
CudaStatus launch_listed(const Params& params, int ordinal, Stream stream);

/// Rows that hidden values or a sink have made NaN, and the gradient of sinks.
CudaStatus launch_finish(const Params& params, DType dtype, int multiprocessors, Stream stream);

}  // namespace fovea::gpu::portable::block_attention_backward
