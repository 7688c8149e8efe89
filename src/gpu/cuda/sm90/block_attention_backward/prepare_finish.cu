// SPDX-License-Identifier: Apache-2.0
/// The kernels before and after that of the gradients.
#include "gpu/cuda/common/gradient/list_kernels.cuh"
#include "gpu/cuda/sm90/attention_backward/prepare_finish.cuh"
#include "gpu/cuda/sm90/block_attention_backward/config.hpp"

namespace fovea::gpu::sm90::block_attention_backward {

CudaStatus launch_prepare(const Params& params, DType dtype, Stream stream) {
  if (const CudaStatus made = gradient::make_lists(params, stream); !made) return made;
  if (const CudaStatus prepared = attention_backward::launch_prepare_of(params, dtype, stream); !prepared) return prepared;
  return gradient::make_steps(params, stream);
}

CudaStatus launch_finish(const Params& params, DType dtype, Stream stream) {
  return attention_backward::launch_finish_of(params, dtype, stream);
}

}  // namespace fovea::gpu::sm90::block_attention_backward
