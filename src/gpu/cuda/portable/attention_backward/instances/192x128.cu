// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda/portable/attention_backward/kernel.cuh"

namespace fovea::gpu::portable::attention_backward {
template Result<void> launch_differentiate<Config<__half, 5, Gradients::dq>>(const Params&, int, Stream);
template Result<void> launch_differentiate<Config<__half, 5, Gradients::dk_dv>>(const Params&, int, Stream);
template Result<void> launch_differentiate<Config<__nv_bfloat16, 5, Gradients::dq>>(const Params&, int, Stream);
template Result<void> launch_differentiate<Config<__nv_bfloat16, 5, Gradients::dk_dv>>(const Params&, int, Stream);
}  // namespace fovea::gpu::portable::attention_backward
