// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda/sm90/latent_attention/launch.cuh"

template fovea::Result<void> fovea::gpu::sm90::latent::launch_attend<fovea::gpu::sm90::latent::Config<__nv_bfloat16, 512, 1>>(
    const fovea::gpu::sm90::latent::Params&, int, fovea::Stream);
