// SPDX-License-Identifier: Apache-2.0
/// Constants of the kernel for block masks, its parameters and launches. Its code is that of
/// gpu/cuda/sm90/attention_backward.
#pragma once

#include "gpu/cuda/common/gradient/lists.hpp"
#include "gpu/cuda/sm90/attention_backward/config.hpp"
#include "gpu/cuda/sm90/block_attention_backward/tuning.hpp"

namespace fovea::gpu::sm90::block_attention_backward {

struct Params : attention_backward::Params {
  static constexpr bool kLists = true;
  gradient::GradientLists lists{};
};

template <class Element, int kRow, bool kSoftcap>
struct Config : attention_backward::Config<Element, kRow, kSoftcap> {
  using Params = block_attention_backward::Params;
  static constexpr bool kLists = true;
};

/// The lists by key tiles, then RowStats of each query row.
CudaStatus launch_prepare(const Params& params, DType dtype, Stream stream);
template <class Config>
CudaStatus launch_listed(const Params& params, int ordinal, Stream stream);
/// Rows that hidden values or a sink have made NaN, and the gradient of sinks.
CudaStatus launch_finish(const Params& params, DType dtype, Stream stream);

}  // namespace fovea::gpu::sm90::block_attention_backward
