// SPDX-License-Identifier: Apache-2.0
/// Packed latent caches beyond the case table: round trips, and slots that do not exist.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "fovea/info.hpp"
#include "fovea/latent_attention.hpp"
#include "hostile_tensor.hpp"
#include "noise.hpp"

namespace fovea::check {
namespace {

constexpr std::int64_t kTokens = 210, kPage = 7, kBlocks = 40;

/// Implementations that see slots before they run, in memory of the host.
std::vector<std::string_view> quantisers() {
  std::vector<std::string_view> names;
  for (const ImplementationInfo& info : implementations())
    if (info.operation == "quantize_latent_cache" && info.available && info.backend == Backend::cpu) names.push_back(info.name);
  return names;
}

struct Packing {
  Packing(const PackedFormat& format, DType dtype) : rows(contiguous(dtype, {kTokens, format.row()})) {
    desc.rows = rows.desc();
    desc.cache = {.format = format.format, .blocks = kBlocks, .page = kPage, .block_stride = kPage * format.bytes() + 29};
    Random random(9);
    for_each_element(rows.desc(), [&](auto, auto, auto, auto, std::int64_t at) { rows.set(at, random.normal()); });
    for (std::int64_t token = 0; token < kTokens; ++token) slots.push_back(token);
  }
  HostileTensor cache() const { return HostileTensor(contiguous(DType::e4m3, {kBlocks * desc.cache.block_stride}), 3); }

  HostileTensor rows;
  LatentCacheConversionDesc desc{};
  std::vector<std::int64_t> slots{};
};

std::vector<std::byte> bytes_of(const HostileTensor& tensor) {
  return {tensor.storage().data(), tensor.storage().data() + tensor.storage().bytes()};
}

/// Values that the format holds exactly survive being packed, unpacked and packed again. Others move by one quantised value at most.
void round_trip(const PackedFormat& format, DType dtype, std::string_view name) {
  const Packing packing(format, dtype);
  const std::string inverse = std::string(name).replace(name.find("quantize"), 8, "dequantize");
  const auto pack = plan_quantize_latent_cache(packing.desc, {}, {.implementation = name});
  const auto unpack = plan_dequantize_latent_cache(packing.desc, {}, {.implementation = inverse});
  ASSERT_TRUE(pack && unpack);
  const HostileTensor cache = packing.cache(), once(packing.rows.desc()), twice(packing.rows.desc());
  ASSERT_TRUE(pack->run({packing.rows.data(), cache.data(), packing.slots.data()}));
  ASSERT_TRUE(unpack->run({once.data(), cache.data(), packing.slots.data()}));
  ASSERT_TRUE(pack->run({once.data(), cache.data(), packing.slots.data()}));
  ASSERT_TRUE(unpack->run({twice.data(), cache.data(), packing.slots.data()}));
  const bool e4m3 = format.code_type == CodeType::e4m3;
  EXPECT_TRUE(!e4m3 || bytes_of(once) == bytes_of(twice));
  double worst = 0;
  for_each_element(once.desc(), [&](auto, auto, auto, auto, std::int64_t at) {
    const double was = packing.rows.at(at), is = once.at(at);
    worst = std::max(worst, std::fabs(is - was) / std::max(1.0, std::fabs(was)));
  });
  EXPECT_LT(worst, e4m3 ? 0.07 : 0.6);
  EXPECT_GT(worst, 0);
}

TEST(LatentCache, RoundTripsItsOwnValues) {
  for (const PackedFormat& format : kPackedFormats)
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
      for (const std::string_view name : quantisers()) {
        SCOPED_TRACE(std::string(format.name) + " " + std::string(name_of(dtype)) + " " + std::string(name));
        round_trip(format, dtype, name);
      }
}

TEST(LatentCache, SlotsAreCheckedBeforeAnythingIsWritten) {
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max(), kMin = std::numeric_limits<std::int64_t>::min();
  Packing packing(kPackedFormats[0], DType::bf16);
  for (const std::int64_t bad : {kBlocks * kPage, std::int64_t{-2}, kMax, kMin}) {
    packing.slots.back() = bad;
    for (const std::string_view name : quantisers()) {
      SCOPED_TRACE(name);
      const HostileTensor cache = packing.cache();
      const auto planned = plan_quantize_latent_cache(packing.desc, {}, {.implementation = name});
      const Result<void> ran = planned->run({packing.rows.data(), cache.data(), packing.slots.data()});
      ASSERT_FALSE(ran);
      EXPECT_EQ(ran.error().code, ErrorCode::invalid_argument);
      const auto bytes = bytes_of(cache);
      EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0xff}; }));
    }
  }
}

}  // namespace
}  // namespace fovea::check
