// SPDX-License-Identifier: Apache-2.0
/// Launches of the kernels before and after the MMAs, for the parameters of a leaf.
#pragma once

#include "gpu/cuda/common/gradient/finish.cuh"
#include "gpu/cuda/common/gradient/prepare.cuh"
#include "gpu/cuda/sm90/attention_backward/config.hpp"

namespace fovea::gpu::sm90::attention_backward {

template <class Params>
CudaStatus launch_prepare_of(const Params& params, DType dtype, Stream stream) {
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(params.query_tiles), static_cast<unsigned>(params.heads + (Params::kLists ? 1 : 0))),
      .block = dim3(kPrepareThreads),
      .programmatic = true};
  return launch(dtype == DType::f16 ? &prepare<__half, Params> : &prepare<__nv_bfloat16, Params>, shape, stream, params);
}

/// `kBiased`: Params has a bias.
template <class Params, bool kBiased = false>
CudaStatus launch_finish_of(const Params& params, DType dtype, Stream stream) {
  constexpr unsigned kCtas = 132;
  const LaunchShape shape{.grid = dim3(kCtas), .block = dim3(kFinishThreads), .programmatic = true};
  return launch(dtype == DType::f16 ? &finish<__half, Params, kBiased> : &finish<__nv_bfloat16, Params, kBiased>, shape, stream, params);
}

}  // namespace fovea::gpu::sm90::attention_backward
