// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda/sm90/paged_attention/columns/kernel.cuh"

namespace fovea::gpu::sm90::paged_attention::columns {
template CudaStatus launch_columns<__nv_bfloat16>(const Params&, int, int, int, int, Stream);
}  // namespace fovea::gpu::sm90::paged_attention::columns
