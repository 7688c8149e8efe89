// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda/portable/paged_attention/kernel.cuh"

namespace fovea::gpu::portable::paged_attention {
template Result<void> launch_attend<Config<__half, 64, kNarrowRows>>(const Params&, int, Stream);
template Result<void> launch_attend<Config<__half, 64, kMiddleRows>>(const Params&, int, Stream);
template Result<void> launch_attend<Config<__half, 64, kWideRows>>(const Params&, int, Stream);
}  // namespace fovea::gpu::portable::paged_attention
