// SPDX-License-Identifier: Apache-2.0
/// Caches of e4m3 under 16-bit queries: every code, in every place of a chunk.
#include "gpu/hip/cdna/element.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>

namespace fovea::check {
namespace {

using namespace gpu::cdna;

/// Eight codes, of which element `place` is `code`.
std::array<std::uint8_t, 8> codes_with(int code, int place) {
  std::array<std::uint8_t, 8> codes{0x80, 0x01, 0x7e, 0x38, 0x87, 0xfe, 0x08, 0x00};
  codes[static_cast<std::size_t>(place)] = static_cast<std::uint8_t>(code);
  return codes;
}

float widened_element(const Chunk& wide, Place place, float (*to_f32)(std::uint16_t)) {
  const std::uint32_t word = wide.word[place.word];
  return to_f32(static_cast<std::uint16_t>(place.high ? word >> 16 : word));
}

template <class Element>
void check_every_code() {
  using Cache = E4m3Cache<Element>;
  for (int code = 0; code < 256; ++code) {
    for (int place = 0; place < 8; ++place) {
      const auto codes = codes_with(code, place);
      const auto stored = load_unaligned<Words<2>>(codes.data());
      const bool nan = (code & 0x7f) == 0x7f;
      ASSERT_EQ(Cache::has_nans(stored), nan) << code;
      const Chunk careful = Cache::template widened<true>(stored, 1), quick = Cache::template widened<false>(stored, 1);
      for (int x = 0; x < 8; ++x) {
        const float want = Cache::at(codes.data(), x), got = widened_element(careful, Cache::place_of(x), Element::to_f32);
        ASSERT_EQ(std::isnan(got), std::isnan(want)) << code << " at " << place;
        if (std::isnan(want)) continue;
        ASSERT_EQ(got, want) << code << " at " << place;
        ASSERT_EQ(std::signbit(got), std::signbit(want));
        ASSERT_EQ(widened_element(quick, Cache::place_of(x), Element::to_f32), want);
        ASSERT_EQ(want, detail::f32_from_e4m3(codes[static_cast<std::size_t>(x)]));
      }
    }
  }
}

TEST(E4m3Cache, WidensEveryCodeInEveryPlace) {
  check_every_code<F16>();
  check_every_code<Bf16>();
}

/// Queries are arranged as keys are widened: an MMA multiplies what is in the same place.
TEST(E4m3Cache, ArrangesQueriesAsItsCodes) {
  Chunk chunk{};
  for (int x = 0; x < 8; ++x) chunk.word[x / 2] |= static_cast<std::uint32_t>(x + 1) << 16 * (x % 2);
  const auto same = [](std::uint16_t bits) { return static_cast<float>(bits); };
  for (int x = 0; x < 8; ++x) {
    EXPECT_EQ(widened_element(E4m3Cache<F16>::arranged(chunk), E4m3Cache<F16>::place_of(x), same), static_cast<float>(x + 1));
    EXPECT_EQ(widened_element(SameCache<F16>::arranged(chunk), SameCache<F16>::place_of(x), same), static_cast<float>(x + 1));
  }
}

}  // namespace
}  // namespace fovea::check
