// SPDX-License-Identifier: Apache-2.0
/// MMAs of a warp (mma.sync) and loads of their operands from shared memory (ldmatrix), for every architecture since Turing.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "gpu/cuda/common/target.cuh"

namespace fovea::gpu {

/// Whether the target has MMAs of these elements: bf16 from compute capability 8.0 on.
template <class Element>
inline constexpr bool kHasMma = kTarget >= 80 || std::is_same_v<Element, __half>;

/// d (16 x 8, four accumulators of each lane) += a (16 x 16) b (16 x 8), where b0 and b1 are the halves of b along its 16.
/// e4m3 operands (has_e4m3_mma) are 16 x 32 and 32 x 8: two elements in place of a 16-bit one.
template <class Element>
__device__ __forceinline__ void mma(float* d, const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else if constexpr (std::is_same_v<Element, __nv_fp8_e4m3>) {
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else if constexpr (kTarget >= 80) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[2]), "r"(a[3]), "r"(b1));
  }
}

/// The same for int8, with integer accumulators.
__device__ __forceinline__ void mma(int* d, const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  if constexpr (kTarget >= 80) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    const auto eight_rows = [](int* half, std::uint32_t rows, std::uint32_t columns) {
      asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
          : "+r"(half[0]), "+r"(half[1])
          : "r"(rows), "r"(columns));
    };
    eight_rows(d, a[0], b0);
    eight_rows(d, a[2], b1);
    eight_rows(d + 2, a[1], b0);
    eight_rows(d + 2, a[3], b1);
  }
}

/// A row of 16 elements, and one of its two chunks of 16 bytes.
struct MatrixPlace {
  int row;
  int chunk;
};
/// The lane's address for an A operand, whose rows lie in memory, and for a B operand with ldmatrix_trans, whose rows are
/// the contracted dimension.
__device__ constexpr MatrixPlace a_operand_place(int lane) { return {lane % 16, lane / 16}; }
/// The lane's address for a B operand whose rows in memory are the columns of the result.
__device__ constexpr MatrixPlace b_operand_place(int lane) { return {lane / 16 * 8 + lane % 8, lane / 8 % 2}; }

/// Loads 16 x 16 elements. Each lane passes the address of one row's chunk.
__device__ inline void ldmatrix(std::uint32_t (&to)[4], std::uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared)
               : "memory");
}
__device__ inline void ldmatrix_trans(std::uint32_t (&to)[4], std::uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared)
               : "memory");
}

/// Transposes 8 x 8 elements. Each lane has two neighbours of a row.
__device__ inline std::uint32_t movmatrix_trans(std::uint32_t matrix) {
  std::uint32_t to;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to) : "r"(matrix));
  return to;
}

}  // namespace fovea::gpu
