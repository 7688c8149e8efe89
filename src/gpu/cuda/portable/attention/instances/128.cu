// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda/portable/attention/kernel.cuh"

namespace fovea::gpu::portable::attention {
template Result<void> launch_attend<Config<__half, 3>>(const Params&, int, int, Stream);
template Result<void> launch_attend<Config<__nv_bfloat16, 3>>(const Params&, int, int, Stream);
}  // namespace fovea::gpu::portable::attention
