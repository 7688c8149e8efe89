// SPDX-License-Identifier: Apache-2.0
/// Tiles give the bits that the manual's pseudocode says, emulated ones and, where there are any, those of the processor.
#if defined(__x86_64__)
#include "tiles.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <random>
#include <vector>

#include "cpu/features.hpp"

namespace fovea::cpu {
namespace {

constexpr int kRowBytes = 64;
using Tile = std::array<std::uint32_t, 256>;  // [row][column]

std::uint32_t element(const Tile& tile, int row, int column) { return tile[static_cast<std::size_t>(row * kRowBytes / 4 + column)]; }

float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }
float bf16_of(std::uint32_t pair, int half) { return flushed(std::bit_cast<float>(half == 0 ? pair << 16 : pair & 0xffff0000U)); }

float fused(float a, float b, float c) { return flushed(std::fma(a, b, c)); }

std::uint32_t bf16_product(TileSizes sizes, std::uint32_t c, const Tile& a, const Tile& b, int row, int column) {
  float even = 0, odd = 0;
  for (int k = 0; k < sizes.depth; ++k) {
    even = fused(bf16_of(element(a, row, k), 0), bf16_of(element(b, k, column), 0), even);
    odd = fused(bf16_of(element(a, row, k), 1), bf16_of(element(b, k, column), 1), odd);
  }
  return std::bit_cast<std::uint32_t>(flushed(flushed(std::bit_cast<float>(c)) + flushed(even + odd)));
}

std::uint32_t int8_product(TileSizes sizes, std::uint32_t c, const Tile& a, const Tile& b, int row, int column) {
  const auto byte = [](std::uint32_t word, int i) { return static_cast<std::int8_t>(word >> (8 * i)); };
  std::int64_t sum = c;
  for (int k = 0; k < sizes.depth; ++k) {
    for (int i = 0; i < 4; ++i) sum += byte(element(a, row, k), i) * byte(element(b, k, column), i);
  }
  return static_cast<std::uint32_t>(sum);
}

struct Tiles {
  const char* name;
  const TileProducts* products;
};

std::vector<Tiles> available_tiles() {
  std::vector<Tiles> all;
  if (features().avx512) all.push_back({"emulated", &emulated_tiles::kProducts});
#ifndef FOVEA_EMULATE_AMX
  if (features().amx_bf16) all.push_back({"processor", &processor_tiles::kProducts});
#endif
  return all;
}

/// bf16 of few exponents, so that sums cancel; some of all bits.
std::uint32_t bf16_pair(std::mt19937& random, bool all_bits) {
  const std::uint32_t bits = static_cast<std::uint32_t>(random());
  return all_bits ? bits : (bits & 0x81ff81ffU) | 0x3f003f00U;
}

bool is_nan(std::uint32_t bits) { return std::isnan(std::bit_cast<float>(bits)); }

struct Operands {
  Tile a{}, b{}, c{};
};

template <class Product>
void compare(MultiplyTiles multiply, TileSizes sizes, const Operands& with, const Product& product, bool floats) {
  Tile result = with.c;
  multiply(sizes, result.data(), with.a.data(), with.b.data());
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 16; ++column) {
      const std::uint32_t before = element(with.c, row, column), got = element(result, row, column);
      const bool inside = row < sizes.rows && column < sizes.columns;
      const std::uint32_t want = inside ? product(sizes, before, with.a, with.b, row, column) : before;
      if (floats && is_nan(want) && is_nan(got)) continue;
      ASSERT_EQ(got, want) << "row " << row << ", column " << column;
    }
  }
}

constexpr TileSizes kSizes[]{{16, 16, 16}, {1, 1, 1}, {5, 16, 16}, {16, 3, 16}, {16, 16, 7}, {15, 15, 15}};

TEST(Tiles, products_are_those_of_the_manual) {
  std::mt19937 random(1);
  for (const Tiles& tiles : available_tiles()) {
    for (int run = 0; run < 60; ++run) {
      const TileSizes sizes = kSizes[run % 6];
      SCOPED_TRACE(testing::Message() << tiles.name << ", run " << run);
      Operands bf16, int8;
      for (Tile* tile : {&bf16.a, &bf16.b}) {
        for (std::uint32_t& pair : *tile) pair = bf16_pair(random, run % 10 == 9 || random() % 64 == 0);
      }
      for (std::uint32_t& c : bf16.c) c = bf16_pair(random, run % 3 == 2);
      for (Tile* tile : {&int8.a, &int8.b, &int8.c}) {
        for (std::uint32_t& word : *tile) word = static_cast<std::uint32_t>(random());
      }
      compare(tiles.products->bf16, sizes, bf16, bf16_product, true);
      compare(tiles.products->int8, sizes, int8, int8_product, false);
    }
  }
}

/// Products and sums below the smallest normal number.
TEST(Tiles, subnormal_numbers_are_zeros) {
  for (const Tiles& tiles : available_tiles()) {
    SCOPED_TRACE(tiles.name);
    for (const auto& [a, b, c] : {std::array<std::uint32_t, 3>{0x00010001, 0x3f803f80, 0x00000001},     // subnormal operand and C
                                  std::array<std::uint32_t, 3>{0x1f801f80, 0x1f801f80, 0x00000000},     // subnormal product
                                  std::array<std::uint32_t, 3>{0x00803f80, 0x3f800080, 0x80c00000}}) {  // subnormal result
      Operands with;
      with.a.fill(a);
      with.b.fill(b);
      with.c.fill(c);
      compare(tiles.products->bf16, {16, 16, 1}, with, bf16_product, true);
    }
  }
}

#ifdef FOVEA_EMULATE_AMX
TEST(Tiles, emulated_ones_are_used_and_named) {
  if (std::getenv("FOVEA_MAX_CPU_ISA") != nullptr) GTEST_SKIP();
  std::vector<DeviceInfo> devices;
  append_devices(devices);
  const auto& names = devices.front().features;
  EXPECT_EQ(std::count(names.begin(), names.end(), "emulated_amx_bf16"), features().avx512bf16 ? 1 : 0);
}
#endif

}  // namespace
}  // namespace fovea::cpu
#endif
