// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda/sm90/attention_backward/kernel.cuh"

namespace fovea::gpu::sm90::attention_backward {
template Result<void> launch_differentiate<Config<__nv_bfloat16, 2, false>>(const Params&, int, Stream);
template Result<void> launch_differentiate<Config<__nv_bfloat16, 2, true>>(const Params&, int, Stream);
}  // namespace fovea::gpu::sm90::attention_backward
