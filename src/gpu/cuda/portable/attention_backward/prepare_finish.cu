// SPDX-License-Identifier: Apache-2.0
/// The kernels before and after those of the gradients.
#include "gpu/cuda/common/gradient/finish.cuh"
#include "gpu/cuda/common/gradient/prepare.cuh"
#include "gpu/cuda/portable/attention_backward/config.hpp"

namespace fovea::gpu::portable::attention_backward {
namespace {

template <class Element>
auto prepare_of(bool aligned) {
  return aligned ? &prepare<Element, Params, true> : &prepare<Element, Params, false>;
}

}  // namespace

Result<void> launch_prepare(const Params& params, DType dtype, Stream stream) {
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(params.query_tiles), static_cast<unsigned>(params.heads)),
                          .block = dim3(kPrepareThreads)};
  const bool aligned = params.out.aligned && params.dout.aligned && params.dq.aligned;
  return launch(dtype == DType::f16 ? prepare_of<__half>(aligned) : prepare_of<__nv_bfloat16>(aligned), shape, stream, params);
}

Result<void> launch_finish_biased(const Params& params, DType dtype, int multiprocessors, Stream stream) {
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(multiprocessors)), .block = dim3(kFinishThreads)};
  return launch(dtype == DType::f16 ? &finish<__half, Params, true> : &finish<__nv_bfloat16, Params, true>, shape, stream, params);
}

Result<void> launch_finish(const Params& params, DType dtype, int multiprocessors, Stream stream) {
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(multiprocessors)), .block = dim3(kFinishThreads)};
  return launch(dtype == DType::f16 ? &finish<__half, Params> : &finish<__nv_bfloat16, Params>, shape, stream, params);
}

}  // namespace fovea::gpu::portable::attention_backward
