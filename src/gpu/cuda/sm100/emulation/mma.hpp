// SPDX-License-Identifier: Apache-2.0
/// mma.cuh for the host.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "gpu/cuda/sm100/emulation/machine.hpp"

namespace fovea::gpu::sm100 {

template <class Element>
inline void mma_ss(std::uint32_t d, std::uint64_t a, std::uint64_t b, std::uint32_t instruction, bool accumulate) {
  emulation::mma_issue({.d = d,
                        .instruction = instruction,
                        .a = a,
                        .b = b,
                        .a_in_tensor_memory = false,
                        .accumulate = accumulate,
                        .bf16 = std::is_same_v<Element, __nv_bfloat16>});
}
template <class Element>
inline void mma_ts(std::uint32_t d, std::uint32_t a, std::uint64_t b, std::uint32_t instruction, bool accumulate) {
  emulation::mma_issue({.d = d,
                        .instruction = instruction,
                        .a = a,
                        .b = b,
                        .a_in_tensor_memory = true,
                        .accumulate = accumulate,
                        .bf16 = std::is_same_v<Element, __nv_bfloat16>});
}
inline void mma_commit(std::uint64_t& barrier) { emulation::mma_commit(barrier); }

}  // namespace fovea::gpu::sm100
