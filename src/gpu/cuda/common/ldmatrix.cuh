// SPDX-License-Identifier: Apache-2.0
/// Operands of mma_sync.cuh from shared memory: 16 x 16 elements at once, of which each lane names one row's chunk of 16 bytes.
#pragma once

#include <cstdint>

namespace fovea::gpu {

/// A row, and its chunk of 16 bytes: 0 or 1.
struct MatrixPlace {
  int row, chunk;
};
/// What the lane names for the first operand, whose rows lie in memory, and for a second one whose rows are the summed-up dimension
/// (load_matrices_transposed).
__device__ constexpr MatrixPlace first_operand_place(int lane) { return {lane % 16, lane / 16}; }
/// For a second operand whose rows in memory are the columns of the result.
__device__ constexpr MatrixPlace second_operand_place(int lane) { return {lane / 16 * 8 + lane % 8, lane / 8 % 2}; }

__device__ inline void load_matrices(std::uint32_t (&to)[4], std::uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared)
               : "memory");
}
__device__ inline void load_matrices_transposed(std::uint32_t (&to)[4], std::uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared)
               : "memory");
}

/// A matrix of 8 x 8 elements, two neighbours of a row in each lane, transposed.
__device__ inline std::uint32_t transposed(std::uint32_t matrix) {
  std::uint32_t to;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to) : "r"(matrix));
  return to;
}

}  // namespace fovea::gpu
