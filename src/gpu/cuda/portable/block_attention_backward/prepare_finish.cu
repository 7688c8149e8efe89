// SPDX-License-Identifier: Apache-2.0
/// The kernels before and after those of the gradients.
#include "gpu/cuda/common/gradient/list_kernels.cuh"
#include "gpu/cuda/portable/attention_backward/prepare_finish.cuh"
#include "gpu/cuda/portable/block_attention_backward/config.hpp"

namespace fovea::gpu::portable::block_attention_backward {

CudaStatus launch_prepare(const Params& params, DType dtype, Stream stream) {
  if (const CudaStatus made = gradient::make_lists(params, stream); !made) return made;
  if (const CudaStatus prepared = attention_backward::launch_prepare_of(params, dtype, stream); !prepared) return prepared;
  return gradient::make_steps(params, stream);
}

CudaStatus launch_finish(const Params& params, DType dtype, int multiprocessors, Stream stream) {
  return attention_backward::launch_finish_of<false>(params, dtype, multiprocessors, stream);
}

}  // namespace fovea::gpu::portable::block_attention_backward
