// SPDX-License-Identifier: Apache-2.0
/// Launches of the kernels before and after those of the gradients, for the parameters of a leaf.
#pragma once

#include "gpu/cuda/common/gradient/finish.cuh"
#include "gpu/cuda/common/gradient/prepare.cuh"
#include "gpu/cuda/portable/attention_backward/config.hpp"

namespace fovea::gpu::portable::attention_backward {

template <class Element, class Params>
auto prepare_of(bool aligned) {
  return aligned ? &prepare<Element, Params, true> : &prepare<Element, Params, false>;
}

template <class Params>
CudaStatus launch_prepare_of(const Params& params, DType dtype, Stream stream) {
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(params.query_tiles), static_cast<unsigned>(params.heads)),
                          .block = dim3(kPrepareThreads)};
  const bool aligned = params.out.aligned && params.dout.aligned && params.dq.aligned;
  return launch(dtype == DType::f16 ? prepare_of<__half, Params>(aligned) : prepare_of<__nv_bfloat16, Params>(aligned), shape, stream,
                params);
}

/// `kBiased`: score terms are added too.
template <bool kBiased, class Params>
CudaStatus launch_finish_of(const Params& params, DType dtype, int multiprocessors, Stream stream) {
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(multiprocessors)), .block = dim3(kFinishThreads)};
  return launch(dtype == DType::f16 ? &finish<__half, Params, kBiased> : &finish<__nv_bfloat16, Params, kBiased>, shape, stream, params);
}

}  // namespace fovea::gpu::portable::attention_backward
