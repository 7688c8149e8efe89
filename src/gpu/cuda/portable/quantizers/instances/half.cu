// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda/portable/quantizers/channels.cuh"
#include "gpu/cuda/portable/quantizers/int8.cuh"
#include "gpu/cuda/portable/quantizers/steps.hpp"
#include "gpu/cuda/portable/quantizers/values.cuh"

namespace fovea::gpu::portable::quantizers {
using Element = __half;
const Kernels kHalfKernels{
    {&quantize_int8<Element, 64>, &quantize_int8<Element, 96>, &quantize_int8<Element, 128>, &quantize_int8<Element, 256>},
    &look_at_channels<Element>,
    &encode_values<Element, __half>,
    &encode_values<Element, __nv_fp8_e4m3>};
}  // namespace fovea::gpu::portable::quantizers
