// SPDX-License-Identifier: Apache-2.0
/// The kernels whose scores are int8 dot products; everything else comes from the AVX-512 object.
#include FOVEA_ISA_HEADER

#include "cpu/quantized_attention/int8_kernels.hpp"

namespace fovea::cpu::FOVEA_ISA {

extern constexpr AttentionKernels kInt8{kInt8Kernels<Int8DotMath>};

}  // namespace fovea::cpu::FOVEA_ISA
