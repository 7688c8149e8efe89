// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda/portable/quantizers/kernel.cuh"
#include "gpu/cuda/portable/quantizers/steps.hpp"

namespace fovea::gpu::portable::quantizers {
using Element = __half;
const Kernels kHalfKernels{
    {&quantize<Element, 64, true>, &quantize<Element, 96, true>, &quantize<Element, 128, true>, &quantize<Element, 256, true>},
    {&quantize<Element, 64, false>, &quantize<Element, 96, false>, &quantize<Element, 128, false>, &quantize<Element, 256, false>}};
}  // namespace fovea::gpu::portable::quantizers
