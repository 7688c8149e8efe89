// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda/sm100/emulation/tensor_core.hpp"

#include <bit>
#include <cstring>

#include "gpu/cuda/sm100/emulation/clock.hpp"
#include "gpu/cuda/sm100/emulation/tensor_map.hpp"

namespace fovea::gpu::sm100::emulation {
namespace {

constexpr std::uint64_t bits(std::uint64_t word, int first, int count) { return word >> first & ((std::uint64_t{1} << count) - 1); }

/// A field of a descriptor and the value that it must have.
struct Fixed {
  int first, count;
  std::uint64_t value;
  const char* name;
};

std::string check_fixed(const char* descriptor, std::uint64_t word, std::initializer_list<Fixed> fields) {
  for (const auto& [first, count, value, name] : fields) {
    if (bits(word, first, count) == value) continue;
    return std::string(descriptor) + ": " + name + " (bits " + std::to_string(first) + " to " + std::to_string(first + count - 1) +
           ") is " + std::to_string(bits(word, first, count)) + ", want " + std::to_string(value);
  }
  return {};
}

std::string decode_instruction(std::uint32_t word, DecodedMma& to, bool& a_mn, bool& b_mn) {
  std::string wrong = check_fixed("instruction descriptor", word,
                                  {{0, 2, 0, "sparsity selector"},
                                   {2, 1, 0, "sparsity"},
                                   {3, 1, 0, "saturation"},
                                   {4, 2, 1, "format of d"},
                                   {6, 1, 0, "reserved"},
                                   {8, 2, 0, "format of a"},
                                   {11, 2, 0, "format of b"},
                                   {13, 2, 0, "negation"},
                                   {23, 1, 0, "reserved"},
                                   {24, 5, kMmaRows / 16, "M / 16"},
                                   {29, 1, 0, "reserved"},
                                   {30, 2, 0, "shift"}});
  if (!wrong.empty()) return wrong;
  to.a_bf16 = bits(word, 7, 1) != 0;
  to.b_bf16 = bits(word, 10, 1) != 0;
  a_mn = bits(word, 15, 1) != 0;
  b_mn = bits(word, 16, 1) != 0;
  to.columns = 8 * static_cast<int>(bits(word, 17, 6));
  if (to.columns % 16 == 0 && to.columns >= 16 && to.columns <= kMostMmaColumns) return {};
  return "instruction descriptor: N is " + std::to_string(to.columns) + ", want a multiple of 16 from 16 to 256";
}

std::string decode_operand(const char* name, std::uint64_t word, int rows, bool mn_major, SharedOperand& to) {
  const std::string descriptor = std::string("descriptor of ") + name;
  std::string wrong = check_fixed(descriptor.c_str(), word,
                                  {{14, 2, 0, "reserved"},
                                   {30, 2, 0, "reserved"},
                                   {46, 3, 1, "version"},
                                   {49, 3, 0, "base offset"},
                                   {52, 1, 0, "mode of the leading dimension"},
                                   {53, 8, 0, "reserved"},
                                   {61, 3, 2, "swizzle"}});
  if (!wrong.empty()) return wrong;
  to = {mn_major, rows, static_cast<std::uint32_t>(bits(word, 0, 14)) << 4, static_cast<std::uint32_t>(bits(word, 16, 14)) << 4,
        static_cast<std::uint32_t>(bits(word, 32, 14)) << 4};
  const auto bad = [&](const char* what, std::uint32_t is, const char* want) {
    return descriptor + ": " + what + " is " + std::to_string(is) + ", want " + want;
  };
  if (bits(to.start, 7, 3) != 0) return bad("start address", to.start, "in the first row of 1024 bytes: the base offset is 0");
  if (!mn_major && to.start % 128 > 96) return bad("start address", to.start, "32 bytes within a row of 128");
  if (mn_major && to.start % 128 != 0) return bad("start address", to.start, "a multiple of 128");
  if (to.stride_bytes % 1024 != 0 || to.stride_bytes == 0) return bad("stride", to.stride_bytes, "a multiple of 1024");
  if (mn_major && rows > 64 && (to.leading_bytes % 1024 != 0 || to.leading_bytes == 0)) {
    return bad("leading dimension", to.leading_bytes, "a multiple of 1024");
  }
  return {};
}

float to_float(std::uint16_t element, bool bf16) {
  if (bf16) return std::bit_cast<float>(std::uint32_t{element} << 16);
  // f16: the exponent moves by 112, exact for denormals too; infinities and NaN need all ones.
  const auto magnitude = std::bit_cast<float>((std::uint32_t{element} & 0x7fff) << 13) * 0x1p112F;
  const std::uint32_t special = (element & 0x7c00) == 0x7c00 ? 0x7f800000 : 0;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | special | (std::uint32_t{element} & 0x8000) << 16);
}

}  // namespace

std::uint32_t SharedOperand::address(int line, int chunk) const {
  const auto l = static_cast<std::uint32_t>(line), c = static_cast<std::uint32_t>(chunk);
  const std::uint32_t within = l % 8 * 128 + l / 8 * stride_bytes;
  return swizzled(start + within + (mn_major ? c / 8 * leading_bytes + c % 8 * 16 : c * 16), 128);
}

std::string decode(const Mma& mma, DecodedMma& to) {
  bool a_mn = false, b_mn = false;
  std::string wrong = decode_instruction(mma.instruction, to, a_mn, b_mn);
  if (wrong.empty() && (to.a_bf16 != mma.bf16 || to.b_bf16 != mma.bf16)) wrong = "instruction descriptor: not of the kernel's element";
  if (wrong.empty() && mma.a_in_tensor_memory && a_mn) wrong = "instruction descriptor: a is mn-major, but in tensor memory";
  if (wrong.empty() && !mma.a_in_tensor_memory) wrong = decode_operand("a", mma.a, kMmaRows, a_mn, to.a);
  if (wrong.empty()) wrong = decode_operand("b", mma.b, to.columns, b_mn, to.b);
  if (wrong.empty() && mma.d >> 16 != 0) wrong = "address of d: lane is " + std::to_string(mma.d >> 16) + ", want 0";
  if (wrong.empty() && mma.a_in_tensor_memory && mma.a >> 16 != 0) {
    wrong = "address of a: lane is " + std::to_string(mma.a >> 16) + ", want 0";
  }
  return wrong;
}

template <std::size_t kRows>
void fetch(Factors<kRows>& to, const SharedOperand& operand, bool bf16, const std::byte* shared, std::uint32_t base_address) {
  for (int line = 0; line < operand.lines(); ++line) {
    for (int chunk = 0; chunk < operand.chunks(); ++chunk) {
      std::uint16_t elements[8];
      std::memcpy(elements, shared + (operand.address(line, chunk) - base_address), sizeof elements);
      for (int e = 0; e < 8; ++e) {
        const int along = 8 * chunk + e, k = operand.mn_major ? line : along, row = operand.mn_major ? along : line;
        to[static_cast<std::size_t>(k)][static_cast<std::size_t>(row)] = to_float(elements[e], bf16);
      }
    }
  }
}
template void fetch(Factors<kMmaRows>&, const SharedOperand&, bool, const std::byte*, std::uint32_t);
template void fetch(Factors<kMostMmaColumns>&, const SharedOperand&, bool, const std::byte*, std::uint32_t);

void fetch(Factors<kMmaRows>& to, const std::uint32_t* columns, bool bf16) {
  for (std::size_t k = 0; k < kMmaDepth; ++k) {
    for (std::size_t row = 0; row < kMmaRows; ++row) {
      to[k][row] = to_float(static_cast<std::uint16_t>(columns[k / 2 * kMmaRows + row] >> 16 * (k % 2)), bf16);
    }
  }
}

FOVEA_HOST_CLONES
void multiply(float* d, const Factors<kMmaRows>& a, const Factors<kMostMmaColumns>& b, int columns, bool accumulate) {
  for (int column = 0; column < columns; ++column, d += kMmaRows) {
    float sums[kMmaRows];
    for (int row = 0; row < kMmaRows; ++row) sums[row] = accumulate ? d[row] : 0;
    for (std::size_t k = 0; k < kMmaDepth; ++k) {
      const float factor = b[k][static_cast<std::size_t>(column)];
      for (int row = 0; row < kMmaRows; ++row) sums[row] += a[k][static_cast<std::size_t>(row)] * factor;
    }
    std::memcpy(d, sums, sizeof sums);
  }
}

}  // namespace fovea::gpu::sm100::emulation
