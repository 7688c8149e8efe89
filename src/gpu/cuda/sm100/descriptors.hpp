// SPDX-License-Identifier: Apache-2.0
/// The words that describe an MMA of f16 or bf16 and its operands: PTX's instruction descriptor and
/// shared-memory descriptor, and addresses of tensor memory.
#pragma once

#include <cstdint>

namespace fovea::gpu::sm100 {

/// k: an operand is contiguous along the dimension that an MMA sums over. mn: along the other one.
enum class Major : std::uint32_t { k = 0, mn = 1 };

/// Elements of both operands.
enum class MmaElement : std::uint32_t { f16 = 0, bf16 = 1 };

/// An MMA with accumulators of f32.
struct MmaShape {
  MmaElement element;
  Major a, b;
  int m, n;
};

constexpr std::uint32_t instruction_descriptor(const MmaShape& shape) {
  constexpr std::uint32_t kF32 = 1;
  const auto element = static_cast<std::uint32_t>(shape.element);
  return kF32 << 4 | element << 7 | element << 10 | static_cast<std::uint32_t>(shape.a) << 15 | static_cast<std::uint32_t>(shape.b) << 16 |
         static_cast<std::uint32_t>(shape.n) / 8 << 17 | static_cast<std::uint32_t>(shape.m) / 16 << 24;
}

inline constexpr int kSliceBytes = 128;     // of a row in the 128-byte swizzle: 64 elements
inline constexpr int kSwizzleBytes = 1024;  // of eight rows, after which the swizzle repeats
inline constexpr int kMmaDepth = 16;        // elements that an MMA sums over

/// An operand in the 128-byte swizzle at `address`, a multiple of kSwizzleBytes.
/// `leading_bytes`: between slices, which counts for Major::mn alone. `stride_bytes`: between the
/// swizzle's repetitions.
constexpr std::uint64_t shared_descriptor(std::uint32_t address, int leading_bytes, int stride_bytes) {
  constexpr std::uint64_t kVersion = std::uint64_t{1} << 46, kSwizzle128 = std::uint64_t{2} << 61;
  return kSwizzle128 | kVersion | static_cast<std::uint64_t>(stride_bytes >> 4) << 32 |
         static_cast<std::uint64_t>(leading_bytes >> 4) << 16 | (address & 0x3ffff) >> 4;
}
/// Moves a descriptor by `bytes`, a multiple of 16, which keep its address below 256 KiB.
constexpr std::uint64_t advance_descriptor(std::uint64_t descriptor, int bytes) {
  return (descriptor & ~std::uint64_t{0xffffffff}) | (static_cast<std::uint32_t>(descriptor) + static_cast<std::uint32_t>(bytes >> 4));
}

/// Bytes from one step of kMmaDepth to the next. Major::k: within a slice. Major::mn: 16 rows on.
constexpr int step_bytes(Major major) { return major == Major::k ? kMmaDepth * 2 : kMmaDepth * kSliceBytes; }

inline constexpr int kTensorColumns = 512;  // of a lane of 32 bits

/// An address of tensor memory. Additions to it move columns.
constexpr std::uint32_t tensor_address(std::uint32_t base, int lane, int column) {
  return base + (static_cast<std::uint32_t>(lane) << 16) + static_cast<std::uint32_t>(column);
}
/// The first lane that a warp reaches.
constexpr int first_lane(int warp) { return warp % 4 * 32; }

}  // namespace fovea::gpu::sm100
