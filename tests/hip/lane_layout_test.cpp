// SPDX-License-Identifier: Apache-2.0
/// The emulated MMA against layouts from two other sources.
///
/// IREE's compiler, iree/compiler/Codegen/Dialect/GPU/IR/IREEGPUAttrs.cpp, describes MFMA_F32_16x16x16 by how often threads and their
/// elements go along each dimension, and by the stride of the threads: A is thread {16, 4}, strides {1, 16}, element {1, 4}; B is thread
/// {4, 16}, strides {16, 1}, element {4, 1}; C and D are as B. AMD's matrix instruction calculator (ROCm/amd_matrix_instruction_calculator)
/// prints single entries: A[0][1] is v0{0}[31:16], A[0][4] v0{16}[15:0].
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>

#include "broken_kernels.hpp"
#include "gpu/hip/emulation/machine.hpp"
#include "op/common/numeric.hpp"

namespace fovea::check {
namespace {

/// Threads and elements along rows and columns of a matrix.
struct Layout {
  int thread[2], stride[2], element[2];

  /// The position of an entry among (lane, 4).
  int at(int row, int column) const {
    const int lane = row / element[0] % thread[0] * stride[0] + column / element[1] % thread[1] * stride[1];
    return 4 * lane + row % element[0] * element[1] + column % element[1];
  }
};
constexpr Layout kA{{16, 4}, {1, 16}, {1, 4}}, kB{{4, 16}, {16, 1}, {4, 1}}, kD = kB;

using Matrix = std::array<std::array<float, 16>, 16>;

/// Small integers, all products of which are exact, and no row or column like another.
Matrix integers(int seed) {
  Matrix matrix{};
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) matrix[i][j] = static_cast<float>((7 * i + 3 * j + i * j + seed) % 13 - 6);
  }
  return matrix;
}

std::array<short, 256> of_lanes(const Matrix& matrix, const Layout& layout, bool bf16) {
  std::array<short, 256> lanes{};
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) {
      const std::uint16_t bits = bf16 ? detail::bf16_from_f32(matrix[i][j]) : detail::f16_from_f32(matrix[i][j]);
      lanes[static_cast<std::size_t>(layout.at(i, j))] = static_cast<short>(bits);
    }
  }
  return lanes;
}

/// Entries of the emulated product that are not those of A B.
int wrong_entries(std::string_view name, bool bf16) {
  const Matrix a = integers(1), b = integers(5);
  const auto a_lanes = of_lanes(a, kA, bf16), b_lanes = of_lanes(b, kB, bf16);
  std::array<float, 256> d{};
  const LaneProduct params{a_lanes.data(), b_lanes.data(), d.data(), bf16};
  const auto* kernel = gpu::emulation::find_kernel(name);
  if (kernel == nullptr || gpu::emulation::run(kernel->body, &params, {{1, 1, 1}, 64})) return -1;
  int wrong = 0;
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) {
      float sum = 0;
      for (int k = 0; k < 16; ++k) sum += a[i][k] * b[k][j];
      wrong += d[static_cast<std::size_t>(kD.at(i, j))] == sum ? 0 : 1;
    }
  }
  return wrong;
}

TEST(LaneLayout, TablesAgreeOnEntriesOfA) {
  EXPECT_EQ(kA.at(0, 1), 4 * 0 + 1);   // lane 0, the high half of the first register
  EXPECT_EQ(kA.at(0, 2), 4 * 0 + 2);   // lane 0, the low half of the second
  EXPECT_EQ(kA.at(0, 4), 4 * 16 + 0);  // lane 16, the low half of the first
}

TEST(LaneLayout, TheEmulatedProductIsThatOfTheTables) {
  EXPECT_EQ(wrong_entries("correct_layout", false), 0);
  EXPECT_EQ(wrong_entries("correct_layout", true), 0);
}

TEST(LaneLayout, AWrongLayoutShows) {
  EXPECT_GT(wrong_entries("wrong_layout", false), 100);
  EXPECT_GT(wrong_entries("wrong_layout", true), 100);
}

}  // namespace
}  // namespace fovea::check
