// SPDX-License-Identifier: Apache-2.0
/// The kernels before and after those of the gradients.
#include "gpu/cuda/portable/attention_backward/prepare_finish.cuh"

namespace fovea::gpu::portable::attention_backward {

CudaStatus launch_prepare(const Params& params, DType dtype, Stream stream) { return launch_prepare_of(params, dtype, stream); }

CudaStatus launch_finish_biased(const Params& params, DType dtype, int multiprocessors, Stream stream) {
  return launch_finish_of<true>(params, dtype, multiprocessors, stream);
}

CudaStatus launch_finish(const Params& params, DType dtype, int multiprocessors, Stream stream) {
  return launch_finish_of<false>(params, dtype, multiprocessors, stream);
}

}  // namespace fovea::gpu::portable::attention_backward
