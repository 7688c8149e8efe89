// SPDX-License-Identifier: Apache-2.0
/// Quantising and dequantising packed latent caches: bit for bit what the plain statement of each format gives.
#include <array>

#include "latent_support.hpp"
#include "op/latent_cache_conversion/validate.hpp"

namespace fovea::check {
namespace {

struct ConversionCase {
  CacheFormat format{};
  DType dtype{};
  ScaleRule rule{};
};

std::vector<ConversionCase> cases() {
  std::vector<ConversionCase> all;
  for (const PackedFormat& format : kPackedFormats) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      for (const ScaleRule rule : {ScaleRule::power_of_two, ScaleRule::exact}) all.push_back({format.format, dtype, rule});
    }
  }
  return all;
}

std::string name_of_case(const testing::TestParamInfo<ConversionCase>& info) {
  return std::string(name_of(info.param.format)) + "_" + std::string(name_of(info.param.dtype)) +
         (info.param.rule == ScaleRule::exact ? "_exact" : "_power");
}

constexpr std::int64_t kTokens = 210, kPage = 7, kBlocks = 40, kGap = 29;

/// Magnitudes from far below the smallest scale to beyond the largest; groups of zeros, of one number, and specials.
HostileTensor make_rows(const ConversionCase& spec, std::int64_t width, Random& random) {
  HostileTensor rows(with_gaps(spec.dtype, {kTokens, width}, 11));
  const bool e4m3 = packed_format(spec.format)->code_type == CodeType::e4m3;  // values beyond 6 * 448 have a test of their own for e2m1
  for_each_element(rows.desc(), [&](std::int64_t token, std::int64_t d, auto, auto, std::int64_t at) {
    const std::int64_t kind = (token + d / 16) % 12;
    float value = random.normal() * std::ldexp(1.0f, static_cast<int>(random.below(12)) - 6);
    if (kind == 0) value = 0.0f;
    if (kind == 1) value = -0.0f;
    if (kind == 2) value *= 1e-7f;
    if (kind == 3) value *= spec.dtype == DType::f16 && !e4m3 ? 50.0f : 2e4f;
    if (kind == 4) value *= spec.dtype == DType::f16 || !e4m3 ? 1.0f : 1e36f;
    if (kind == 5) value *= spec.dtype == DType::f16 ? 1e-6f : 1e-38f;
    if (kind == 6) value = 448.0f * std::ldexp(1.0f, static_cast<int>(token % 5));
    if (kind == 7 && random.below(40) == 0) value = random.below(2) == 0 ? std::nanf("") : -std::nanf("");
    if (kind == 8 && e4m3 && random.below(40) == 0) value = random.below(2) == 0 ? kInfinity : -kInfinity;
    rows.set(at, value);
  });
  return rows;
}

/// Every third token skips; the others go to slots in a scrambled order.
std::vector<std::int64_t> make_slots() {
  std::vector<std::int64_t> slots;
  for (std::int64_t token = 0; token < kTokens; ++token) slots.push_back(token % 3 == 1 ? -1 : token * 97 % (kBlocks * kPage));
  return slots;
}

LatentCacheConversionDesc describe(const ConversionCase& spec, const TensorDesc& rows) {
  LatentCacheConversionDesc desc{.rows = rows, .rule = spec.rule};
  desc.cache.format = spec.format;
  desc.cache.blocks = kBlocks;
  desc.cache.page = kPage;
  desc.cache.block_stride = kPage * packed_format(spec.format)->bytes() + kGap;
  return desc;
}

HostileTensor make_cache(const LatentCacheConversionDesc& desc) {
  return HostileTensor(contiguous(DType::e4m3, {kBlocks * desc.cache.block_stride}), 3);
}

using Bytes = std::vector<std::byte>;

Bytes bytes_of(const HostileTensor& tensor) { return {tensor.storage().data(), tensor.storage().data() + tensor.storage().bytes()}; }

/// The first byte that differs, or -1. Any NaN of a 16-bit or 32-bit row equals any other.
std::int64_t first_difference(const Bytes& got, const Bytes& want, DType dtype) {
  const std::size_t size = size_of(dtype);
  for (std::size_t at = 0; at < want.size(); at += size) {
    if (std::memcmp(&got[at], &want[at], size) == 0) continue;
    if (size > 1 && std::isnan(load(dtype, &got[at], 0)) && std::isnan(load(dtype, &want[at], 0))) continue;
    return static_cast<std::int64_t>(at);
  }
  return -1;
}

/// A NaN in the plain bf16 part of a row keeps no particular payload: brings all of them to one.
void settle_rope(const LatentCacheConversionDesc& desc, Bytes& cache) {
  const PackedFormat& format = *packed_format(desc.cache.format);
  for (std::int64_t slot = 0; slot < kBlocks * kPage; ++slot) {
    std::byte* rope = cache.data() + slot / kPage * desc.cache.block_stride + format.rope_at(slot % kPage);
    for (int i = 0; i < format.rope; ++i) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, rope + 2 * i, 2);
      if ((bits & 0x7fff) > 0x7f80) bits = static_cast<std::uint16_t>(bits | 0x7fff);
      std::memcpy(rope + 2 * i, &bits, 2);
    }
  }
}

class LatentCache : public testing::TestWithParam<ConversionCase> {};

TEST_P(LatentCache, QuantisesToTheSameBytes) {
  Random random(7);
  const HostileTensor rows = make_rows(GetParam(), packed_format(GetParam().format)->row(), random);
  const LatentCacheConversionDesc desc = describe(GetParam(), rows.desc());
  const std::vector<std::int64_t> slots = make_slots();
  const HostileTensor want = make_cache(desc);
  const auto problem = detail::validate_quantize(desc);
  ASSERT_TRUE(problem) << problem.error().message;
  reference::quantize_latent_cache(*problem, {rows.data(), want.data(), slots.data()});
  Bytes settled = bytes_of(want);
  settle_rope(desc, settled);
  for (const std::string& name : available("quantize_latent_cache")) {
    SCOPED_TRACE(name);
    const HostileTensor cache = make_cache(desc);
    const auto planned = plan_quantize_latent_cache(desc, {}, {.implementation = name});
    ASSERT_TRUE(planned) << planned.error().message;
    ASSERT_TRUE(planned->run({rows.data(), cache.data(), slots.data()}));
    Bytes got = bytes_of(cache);
    settle_rope(desc, got);
    EXPECT_EQ(first_difference(got, settled, DType::e4m3), -1);
    EXPECT_TRUE(cache.storage().red_zones_intact());
  }
}

/// Bytes of every value, so all codes under all scales that a byte can hold.
TEST_P(LatentCache, DequantisesAnyBytesToTheSameValues) {
  Random random(8);
  const HostileTensor rows(with_gaps(GetParam().dtype, {kTokens, packed_format(GetParam().format)->row()}, 11));
  const LatentCacheConversionDesc desc = describe(GetParam(), rows.desc());
  const HostileTensor cache = make_cache(desc);
  for (std::int64_t at = 0; at < kBlocks * desc.cache.block_stride; ++at)
    cache.as<std::uint8_t>()[at] = static_cast<std::uint8_t>(random.below(256));
  const std::vector<std::int64_t> slots = make_slots();
  const HostileTensor want(rows.desc());
  const auto problem = detail::validate_dequantize(desc);
  ASSERT_TRUE(problem) << problem.error().message;
  reference::dequantize_latent_cache(*problem, {want.data(), cache.data(), slots.data()});
  for (const std::string& name : available("dequantize_latent_cache")) {
    SCOPED_TRACE(name);
    poison(rows);
    const auto planned = plan_dequantize_latent_cache(desc, {}, {.implementation = name});
    ASSERT_TRUE(planned) << planned.error().message;
    ASSERT_TRUE(planned->run({rows.data(), cache.data(), slots.data()}));
    EXPECT_EQ(first_difference(bytes_of(rows), bytes_of(want), GetParam().dtype), -1);
    take(rows);  // gaps and red zones
  }
}

/// Values that the format holds exactly survive being packed, unpacked and packed again.
TEST_P(LatentCache, RoundTripsItsOwnValues) {
  Random random(9);
  const HostileTensor rows = random_tensor(contiguous(GetParam().dtype, {kTokens, packed_format(GetParam().format)->row()}), random);
  const HostileTensor once(rows.desc()), twice(rows.desc());
  const LatentCacheConversionDesc desc = describe({GetParam().format, GetParam().dtype, ScaleRule::power_of_two}, rows.desc());
  std::vector<std::int64_t> slots(static_cast<std::size_t>(kTokens));
  for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<std::int64_t>(i);
  for (const std::string& name : available("quantize_latent_cache")) {
    SCOPED_TRACE(name);
    const std::string inverse = std::string(name).replace(name.find("quantize"), 8, "dequantize");
    const auto pack = plan_quantize_latent_cache(desc, {}, {.implementation = name});
    const auto unpack = plan_dequantize_latent_cache(desc, {}, {.implementation = inverse});
    ASSERT_TRUE(pack && unpack);
    const HostileTensor cache = make_cache(desc);
    ASSERT_TRUE(pack->run({rows.data(), cache.data(), slots.data()}));
    ASSERT_TRUE(unpack->run({once.data(), cache.data(), slots.data()}));
    ASSERT_TRUE(pack->run({once.data(), cache.data(), slots.data()}));
    ASSERT_TRUE(unpack->run({twice.data(), cache.data(), slots.data()}));
    const bool e4m3 = packed_format(GetParam().format)->code_type == CodeType::e4m3;
    EXPECT_TRUE(!e4m3 || bytes_of(once) == bytes_of(twice));
    double worst = 0;
    for_each_element(rows.desc(), [&](auto, auto, auto, auto, std::int64_t at) {
      worst = std::max(
          worst, static_cast<double>(std::fabs(once.at(at) - rows.at(at))) / std::max(1.0, static_cast<double>(std::fabs(rows.at(at)))));
    });
    EXPECT_LT(worst, e4m3 ? 0.07 : 0.6);
    EXPECT_GT(worst, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, LatentCache, testing::ValuesIn(cases()), name_of_case);

TEST(LatentCacheSlots, AreCheckedBeforeAnythingIsWritten) {
  Random random(5);
  const ConversionCase spec{CacheFormat::v32_fp8, DType::bf16, ScaleRule::power_of_two};
  const HostileTensor rows = make_rows(spec, 576, random);
  const LatentCacheConversionDesc desc = describe(spec, rows.desc());
  for (const std::int64_t bad :
       {kBlocks * kPage, std::int64_t{-2}, std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()}) {
    std::vector<std::int64_t> slots = make_slots();
    slots.back() = bad;
    for (const std::string& name : available("quantize_latent_cache")) {
      if (name.starts_with("reference")) continue;
      SCOPED_TRACE(name);
      const HostileTensor cache = make_cache(desc);
      const auto planned = plan_quantize_latent_cache(desc, {}, {.implementation = name});
      const Result<void> ran = planned->run({rows.data(), cache.data(), slots.data()});
      ASSERT_FALSE(ran);
      EXPECT_EQ(ran.error().code, ErrorCode::invalid_argument);
      const Bytes bytes = bytes_of(cache);
      EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0xff}; }));
    }
  }
}

}  // namespace
}  // namespace fovea::check
