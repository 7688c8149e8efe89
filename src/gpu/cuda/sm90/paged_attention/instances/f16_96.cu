// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda/sm90/paged_attention/kernel.cuh"

namespace fovea::gpu::sm90::paged_attention {
template Result<void> launch_attend<Config<__half, 1, false>>(const Params&, int, int, Stream);
template Result<void> launch_attend<Config<__half, 1, true>>(const Params&, int, int, Stream);
}  // namespace fovea::gpu::sm90::paged_attention
