// SPDX-License-Identifier: Apache-2.0
/// The kernel after that of the gradients.
#include "gpu/cuda/sm90/attention_backward/alibi/config.hpp"
#include "gpu/cuda/sm90/attention_backward/prepare_finish.cuh"

namespace fovea::gpu::sm90::attention_backward::alibi {

CudaStatus launch_finish(const Params& params, DType dtype, Stream stream) { return launch_finish_of<Params, true>(params, dtype, stream); }

}  // namespace fovea::gpu::sm90::attention_backward::alibi
