// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda/portable/quantized_attention/kernel.cuh"

namespace fovea::gpu::portable::quantized_attention {
template Result<void> launch_attend<Config<__half, 0>>(const Params&, int, int, Stream);
template Result<void> launch_attend<Config<__nv_fp8_e4m3, 0>>(const Params&, int, int, Stream);
template int target_on<Config<__nv_fp8_e4m3, 0>>(int);
}  // namespace fovea::gpu::portable::quantized_attention
