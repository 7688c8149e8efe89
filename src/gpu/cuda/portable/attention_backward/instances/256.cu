// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda/portable/attention_backward/kernel.cuh"

namespace fovea::gpu::portable::attention_backward {
template Result<void> launch_differentiate<Config<__half, 6, Gradients::dq>>(const Params&, int, Stream);
template Result<void> launch_differentiate<Config<__half, 6, Gradients::dk>>(const Params&, int, Stream);
template Result<void> launch_differentiate<Config<__half, 6, Gradients::dv>>(const Params&, int, Stream);
template Result<void> launch_differentiate<Config<__nv_bfloat16, 6, Gradients::dq>>(const Params&, int, Stream);
template Result<void> launch_differentiate<Config<__nv_bfloat16, 6, Gradients::dk>>(const Params&, int, Stream);
template Result<void> launch_differentiate<Config<__nv_bfloat16, 6, Gradients::dv>>(const Params&, int, Stream);
}  // namespace fovea::gpu::portable::attention_backward
