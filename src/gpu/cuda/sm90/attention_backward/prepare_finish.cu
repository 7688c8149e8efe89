// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda/sm90/attention_backward/prepare_finish.cuh"

namespace fovea::gpu::sm90::attention_backward {

CudaStatus launch_prepare(const Params& params, DType dtype, Stream stream) { return launch_prepare_of(params, dtype, stream); }

CudaStatus launch_finish(const Params& params, DType dtype, Stream stream) { return launch_finish_of(params, dtype, stream); }

}  // namespace fovea::gpu::sm90::attention_backward
