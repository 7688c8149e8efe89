// SPDX-License-Identifier: Apache-2.0
/// MMAs of a CTA (tcgen05.mma): d (128 x N) = or += a (128 x 16) b (16 x N). One thread issues them.
/// They run in the order of their issue, apart from all other accesses. The host has the same
/// functions in gpu/cuda/sm100/emulation/mma.hpp.
///
/// Accumulators d are f32 in tensor memory: row r in lane r, column c in column c. Operand b is in
/// shared memory. Operand a is in shared memory (ss) or in tensor memory (ts), where column c has
/// elements 2c and 2c + 1. gpu/cuda/sm100/descriptors.hpp makes `a`, `b` and `instruction`.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#ifndef __CUDACC__
#include "gpu/cuda/sm100/emulation/mma.hpp"
#else

#include "gpu/cuda/sm100/thread.cuh"

namespace fovea::gpu::sm100 {

template <class Element>
inline constexpr bool kIsMmaElement = std::is_same_v<Element, __half> || std::is_same_v<Element, __nv_bfloat16>;

template <class Element>
__device__ inline void mma_ss(std::uint32_t d, std::uint64_t a, std::uint64_t b, std::uint32_t instruction, bool accumulate) {
  static_assert(kIsMmaElement<Element>);
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\ntcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;\n}" ::"r"(d), "l"(a),
               "l"(b), "r"(instruction), "r"(static_cast<std::uint32_t>(accumulate))
               : "memory");
}
template <class Element>
__device__ inline void mma_ts(std::uint32_t d, std::uint32_t a, std::uint64_t b, std::uint32_t instruction, bool accumulate) {
  static_assert(kIsMmaElement<Element>);
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\ntcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %3, p;\n}" ::"r"(d), "r"(a),
               "l"(b), "r"(instruction), "r"(static_cast<std::uint32_t>(accumulate))
               : "memory");
}

/// Arrives at a barrier once all MMAs that this thread has issued are complete.
__device__ inline void mma_commit(std::uint64_t& barrier) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(shared_address(&barrier)) : "memory");
}

}  // namespace fovea::gpu::sm100

#endif
