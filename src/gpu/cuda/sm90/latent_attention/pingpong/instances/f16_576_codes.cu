// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda/sm90/latent_attention/pingpong/kernel.cuh"

namespace fovea::gpu::sm90::latent {
template Result<void> launch_attend<Config<__half, 576, 1, Load::codes>>(const Params&, int, Stream);
}  // namespace fovea::gpu::sm90::latent
