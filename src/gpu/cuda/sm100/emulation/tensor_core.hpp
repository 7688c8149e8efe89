// SPDX-License-Identifier: Apache-2.0
/// Descriptors of tcgen05.mma.kind::f16, decoded bit by bit by PTX's tables and not by
/// the kernel's own encoder, and the arithmetic of the instruction.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "gpu/cuda/sm100/emulation/machine.hpp"

namespace fovea::gpu::sm100::emulation {

inline constexpr int kMmaRows = 128, kMmaDepth = 16, kMostMmaColumns = 256;

/// An operand in shared memory, in the 128-byte swizzle.
struct SharedOperand {
  bool mn_major = false;
  int rows = 0;  ///< M or N
  std::uint32_t start = 0, leading_bytes = 0, stride_bytes = 0;

  /// In units of 8 elements, which 16 bytes hold: along k of row `i`, or along rows of k `i`.
  int chunks() const { return mn_major ? rows / 8 : kMmaDepth / 8; }
  int lines() const { return mn_major ? kMmaDepth : rows; }
  std::uint32_t address(int line, int chunk) const;
};

struct DecodedMma {
  bool a_bf16 = false, b_bf16 = false;
  int columns = 0;  ///< N
  SharedOperand a{}, b{};
};

/// Says what is wrong with the descriptors, if anything.
std::string decode(const Mma& mma, DecodedMma& to);

/// An operand as floats, by k.
template <std::size_t kRows>
using Factors = std::array<std::array<float, kRows>, kMmaDepth>;

/// Reads an operand from shared memory, whose byte at address `base_address` is `shared`.
template <std::size_t kRows>
void fetch(Factors<kRows>& to, const SharedOperand& operand, bool bf16, const std::byte* shared, std::uint32_t base_address);
/// Reads the first operand from the columns of tensor memory.
void fetch(Factors<kMmaRows>& to, const std::uint32_t* columns, bool bf16);

/// d[column][row] = sum over k of a[k][row] b[k][column], added to d or in its place, in order of k.
void multiply(float* d, const Factors<kMmaRows>& a, const Factors<kMostMmaColumns>& b, int columns, bool accumulate);

}  // namespace fovea::gpu::sm100::emulation
