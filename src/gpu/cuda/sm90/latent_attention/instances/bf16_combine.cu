// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda/sm90/latent_attention/combine.cuh"

template fovea::Result<void> fovea::gpu::sm90::latent::launch_combine<__nv_bfloat16>(const fovea::gpu::sm90::latent::Params&, int,
                                                                                     fovea::Stream);
