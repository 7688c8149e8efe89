// SPDX-License-Identifier: Apache-2.0
/// Descriptors of Blackwell's MMAs beside the constants in the PTX that FlashAttention-4 4.0.0b36 emits for sm_100a, and beside the fields
/// of PTX's tables.
#include <gtest/gtest.h>

#include <cstdint>

#include "gpu/cuda/sm100/descriptors.hpp"

namespace fovea::gpu::sm100 {
namespace {

constexpr int kTile = 128;                            // queries or keys
constexpr int kTileSlice = kTile * kSliceBytes;       // bytes of 64 columns of a tile
constexpr std::uint32_t kOtherHighWord = 0x40004040;  // of each shared-memory descriptor there

std::uint32_t low(std::uint64_t descriptor) { return static_cast<std::uint32_t>(descriptor); }
std::uint32_t high(std::uint64_t descriptor) { return static_cast<std::uint32_t>(descriptor >> 32); }
std::uint64_t field(std::uint64_t word, int begin, int end) { return word >> begin & ((std::uint64_t{1} << (end - begin + 1)) - 1); }

std::uint32_t scores(MmaElement element) { return instruction_descriptor({element, Major::k, Major::k, 128, 128}); }
std::uint32_t sums(MmaElement element, int head_dim_v) { return instruction_descriptor({element, Major::k, Major::mn, 128, head_dim_v}); }

TEST(Sm100Descriptors, InstructionsAreThoseOfASecondImplementation) {
  EXPECT_EQ(scores(MmaElement::bf16), 0x8200490u);
  EXPECT_EQ(sums(MmaElement::bf16, 128), 0x8210490u);
  EXPECT_EQ(sums(MmaElement::bf16, 64), 0x8110490u);
  EXPECT_EQ(scores(MmaElement::f16), 0x8200010u);
  EXPECT_EQ(sums(MmaElement::f16, 128), 0x8210010u);
}

TEST(Sm100Descriptors, FieldsOfAnInstructionAreThoseOfPtx) {
  for (const int m : {64, 128}) {
    for (int n = 8; n <= 256; n += 8) {
      const std::uint32_t word = instruction_descriptor({MmaElement::bf16, Major::mn, Major::k, m, n});
      EXPECT_EQ(field(word, 0, 3), 0u) << "dense";
      EXPECT_EQ(field(word, 4, 5), 1u) << "accumulators of f32";
      EXPECT_EQ(field(word, 7, 9), 1u) << "a of bf16";
      EXPECT_EQ(field(word, 10, 12), 1u) << "b of bf16";
      EXPECT_EQ(field(word, 13, 14), 0u) << "neither is negated";
      EXPECT_EQ(field(word, 15, 15), 1u) << "a is transposed";
      EXPECT_EQ(field(word, 16, 16), 0u) << "b is not";
      EXPECT_EQ(field(word, 17, 22) * 8, static_cast<unsigned>(n));
      EXPECT_EQ(field(word, 24, 28) * 16, static_cast<unsigned>(m));
      EXPECT_EQ(field(word, 29, 31), 0u);
    }
  }
}

TEST(Sm100Descriptors, SharedMemoryIsDescribedAsInASecondImplementation) {
  constexpr std::uint32_t kAddress = 0x21400;
  const std::uint64_t keys = shared_descriptor(kAddress, 16, kSwizzleBytes),
                      values = shared_descriptor(kAddress, kTileSlice, kSwizzleBytes);
  EXPECT_EQ(high(keys), kOtherHighWord);
  EXPECT_EQ(high(values), kOtherHighWord);
  EXPECT_EQ(low(keys), 65536u | kAddress >> 4);
  EXPECT_EQ(low(values), 67108864u | kAddress >> 4);
}

TEST(Sm100Descriptors, FieldsOfSharedMemoryAreThoseOfPtx) {
  const std::uint64_t word = shared_descriptor(0x3fc00, 0x4000, 0x400);
  EXPECT_EQ(field(word, 0, 13) << 4, 0x3fc00u);
  EXPECT_EQ(field(word, 14, 15), 0u);
  EXPECT_EQ(field(word, 16, 29) << 4, 0x4000u);
  EXPECT_EQ(field(word, 32, 45) << 4, 0x400u);
  EXPECT_EQ(field(word, 46, 48), 1u);
  EXPECT_EQ(field(word, 49, 60), 0u) << "base offset and mode of the leading bytes";
  EXPECT_EQ(field(word, 61, 63), 2u) << "swizzle of 128 bytes";
}

// There, step s of 16 columns of queries and keys adds these to the low word.
TEST(Sm100Descriptors, StepsAreThoseOfASecondImplementation) {
  const std::uint32_t other[12] = {0, 0x2, 0x4, 0x6, 0x400, 0x402, 0x404, 0x406, 0x800, 0x802, 0x804, 0x806};
  const std::uint64_t keys = shared_descriptor(0x400, 16, kSwizzleBytes), values = shared_descriptor(0x400, kTileSlice, kSwizzleBytes);
  constexpr int kStepsOfSlice = kSliceBytes / step_bytes(Major::k);
  for (int step = 0; step < 12; ++step) {
    const int bytes = step / kStepsOfSlice * kTileSlice + step % kStepsOfSlice * step_bytes(Major::k);
    EXPECT_EQ(advance_descriptor(keys, bytes), keys + other[step]) << step;
  }
  for (int step = 0; step < 8; ++step) {
    EXPECT_EQ(advance_descriptor(values, step * step_bytes(Major::mn)), values + 0x80u * static_cast<unsigned>(step)) << step;
  }
}

TEST(Sm100Descriptors, AdvancingKeepsTheOtherFields) {
  const std::uint64_t from = shared_descriptor(0x400, kTileSlice, kSwizzleBytes);
  for (int address = 0x400; address < 0x40000; address += 0x400) {
    EXPECT_EQ(advance_descriptor(from, address - 0x400), shared_descriptor(static_cast<std::uint32_t>(address), kTileSlice, kSwizzleBytes));
  }
}

TEST(Sm100Descriptors, TensorMemoryIsAddressedByLaneAndColumn) {
  EXPECT_EQ(tensor_address(0, 0, 384), 384u);
  EXPECT_EQ(tensor_address(0x00200040, 64, 8), 0x00600048u);
  for (int warp = 0; warp < 12; ++warp) {  // as there: the warp's low two bits, shifted by 21
    EXPECT_EQ(tensor_address(0, first_lane(warp), 0), static_cast<std::uint32_t>(warp & 3) << 21) << warp;
  }
}

}  // namespace
}  // namespace fovea::gpu::sm100
