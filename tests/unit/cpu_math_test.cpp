// SPDX-License-Identifier: Apache-2.0
/// exp2, tanh and the conversions of every instruction set, through the tables that the engine calls.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "fovea/tensor.hpp"
#include "op/common/numeric.hpp"
#include "unit/cpu_tables.hpp"

namespace fovea::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kColumns = 64;

class CpuRows : public testing::TestWithParam<NamedRows> {
 protected:
  const RowKernels& kernels() const { return *GetParam().kernels; }
};

class CpuSoftmax : public testing::TestWithParam<NamedAttention> {};

double ulp_of(double value) {
  const auto near = static_cast<float>(std::abs(value));
  return static_cast<double>(std::nextafter(near, kInfinity)) - static_cast<double>(near);
}

/// Weights of scores that are at most 0, with a row maximum of 0: plain powers of two. `scores` ends as the capped scores.
void weights_of(const NamedAttention& table, float* scores, float cap, float* weights) {
  float maximum = 0, sum = 0, rescale = 0;
  std::uint16_t narrow[kColumns];
  void* p = table.bf16 ? static_cast<void*>(narrow) : static_cast<void*>(weights);
  table.kernels->softmax({.scores = scores,
                          .p = p,
                          .score_stride = kColumns,
                          .p_stride = kColumns,
                          .rows = 1,
                          .begin = 0,
                          .end = kColumns,
                          .factor = 1.0f,
                          .soft_cap = {.scale = 1, .cap = cap, .into_cap = cap == 0 ? 0 : 2.88539008f / cap},
                          .maximum = &maximum,
                          .sum = &sum,
                          .rescale = &rescale});
  for (int i = 0; table.bf16 && i < kColumns; ++i) weights[i] = detail::f32_from_bf16(narrow[i]);
}

TEST_P(CpuSoftmax, Exp2StaysWithinItsBound) {
  const NamedAttention& table = GetParam();
  float scores[kColumns], inputs[kColumns], weights[kColumns];
  double worst = 0;
  for (int step = 0; step < 20000; ++step) {
    for (int i = 0; i < kColumns; ++i) inputs[i] = scores[i] = -static_cast<float>(step * kColumns + i) * (126.0f / (20000.0f * kColumns));
    weights_of(table, scores, 0, weights);
    for (int i = 0; i < kColumns; ++i) {
      const double want = std::exp2(static_cast<double>(inputs[i]));
      const double error = std::abs(static_cast<double>(weights[i]) - want);
      worst = std::max(worst, table.bf16 ? error / want : error / ulp_of(want));
    }
  }
  EXPECT_LE(worst, table.bf16 ? 0x1p-8 + 4e-6 : 1.5);  // bf16 operands add half a bf16 ulp
}

TEST_P(CpuSoftmax, Exp2EndsInZeroAndKeepsNan) {
  float scores[kColumns], weights[kColumns];
  for (int i = 0; i < kColumns; ++i) scores[i] = i % 4 == 0 ? -kInfinity : i % 4 == 1 ? std::nanf("") : i % 4 == 2 ? -1e30f : 0.0f;
  weights_of(GetParam(), scores, 0, weights);
  for (int i = 0; i < kColumns; ++i) {
    if (i % 4 == 1) {
      EXPECT_TRUE(std::isnan(weights[i]));
    } else {
      EXPECT_EQ(weights[i], i % 4 == 3 ? 1.0f : 0.0f) << i;
    }
  }
}

TEST_P(CpuSoftmax, TanhStaysWithinItsBoundAndSaturates) {
  float scores[kColumns], inputs[kColumns], weights[kColumns];
  double worst = 0;
  for (int step = 0; step < 20000; ++step) {
    for (int i = 0; i < kColumns; ++i) {
      // From 2^-40 to 2^8, both signs: beyond |x| = 88 a quotient of exponentials would be inf / inf.
      const double size = std::exp2(-40.0 + 48.0 * (step * kColumns + i) / (20000.0 * kColumns));
      inputs[i] = scores[i] = static_cast<float>(i % 2 == 0 ? size : -size);
    }
    weights_of(GetParam(), scores, 1.0f, weights);
    for (int i = 0; i < kColumns; ++i) {
      const double want = std::tanh(static_cast<double>(inputs[i]));
      worst = std::max(worst, std::abs(static_cast<double>(scores[i]) - want) / ulp_of(want));
    }
  }
  EXPECT_LE(worst, 3.0);
}

TEST_P(CpuRows, DecodesEveryCode) {
  const auto check = [&](DType dtype, std::uint32_t codes, auto encode_code, auto decode) {
    for (std::uint32_t code = 0; code < codes; ++code) {
      const auto stored = encode_code(code);
      float got = 0;
      kernels().add_scaled[static_cast<std::size_t>(dtype)](&got, &stored, 1.0f, 1);
      const float want = decode(stored);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(got)) << name_of(dtype) << " " << code;
      } else {
        ASSERT_EQ(got, want) << name_of(dtype) << " " << code;
      }
    }
  };
  const auto word = [](std::uint32_t code) { return static_cast<std::uint16_t>(code); };
  check(DType::f16, 1U << 16, word, detail::f32_from_f16);
  check(DType::bf16, 1U << 16, word, detail::f32_from_bf16);
  check(
      DType::e4m3, 1U << 8, [](std::uint32_t code) { return static_cast<std::uint8_t>(code); }, detail::f32_from_e4m3);
}

TEST_P(CpuRows, RoundsAsTheScalarConversionsDo) {
  constexpr int kCount = 37;  // not a multiple of any vector
  for (std::uint64_t first = 0; first < (1ULL << 32); first += kCount * 7919ULL) {
    float values[kCount];
    for (int i = 0; i < kCount; ++i)
      values[i] = std::bit_cast<float>(static_cast<std::uint32_t>(first + static_cast<std::uint64_t>(i) * 7919U));
    std::uint16_t half[kCount], brain[kCount];
    std::uint8_t byte[kCount];
    kernels().store_divided[static_cast<std::size_t>(DType::f16)](half, values, 1.0f, 1.0f, kCount);
    kernels().store_divided[static_cast<std::size_t>(DType::bf16)](brain, values, 1.0f, 1.0f, kCount);
    kernels().quantize[static_cast<std::size_t>(DType::f32)](byte, values, 1.0f, kCount);
    for (int i = 0; i < kCount; ++i) {
      if (std::isnan(values[i])) {
        ASSERT_TRUE(std::isnan(detail::f32_from_f16(half[i])) && std::isnan(detail::f32_from_bf16(brain[i])));
        ASSERT_EQ(byte[i] & 0x7f, 0x7f);
      } else {
        ASSERT_EQ(half[i], detail::f16_from_f32(values[i])) << values[i];
        ASSERT_EQ(brain[i], detail::bf16_from_f32(values[i])) << values[i];
        ASSERT_EQ(byte[i], detail::e4m3_from_f32(values[i])) << values[i];
      }
    }
  }
}

const auto name_rows = [](const testing::TestParamInfo<NamedRows>& info) { return info.param.name; };
const auto name_tables = [](const testing::TestParamInfo<NamedAttention>& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(Cpu, CpuRows, testing::ValuesIn(row_tables()), name_rows);
INSTANTIATE_TEST_SUITE_P(Cpu, CpuSoftmax, testing::ValuesIn(attention_tables()), name_tables);

}  // namespace
}  // namespace fovea::cpu
