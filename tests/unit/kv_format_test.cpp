// SPDX-License-Identifier: Apache-2.0
/// The KV cache formats: every code against its definition, the decoders of every instruction set, and what quantisers promise.
#include "op/common/kv_format.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "cpu/implementations.hpp"
#include "reference/element.hpp"

namespace fovea {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

/// A row of bytes with room for scales of any format.
struct Bytes {
  std::vector<std::uint8_t> codes, scales;
  explicit Bytes(std::int64_t dim) : codes(static_cast<std::size_t>(dim)), scales(static_cast<std::size_t>(dim)) {}
  detail::KvRowBytes row(DType scale_dtype) { return {codes.data(), scales.data(), scale_dtype}; }
};

/// The dtypes that scales of a format may have.
std::vector<DType> scale_dtypes(const KvRowFormat& format) {
  std::vector<DType> dtypes;
  for (const DType dtype : {DType::f32, DType::f16, DType::e4m3, DType::i8})
    if (format.accepts_scales(dtype)) dtypes.push_back(dtype);
  if (dtypes.empty()) dtypes.push_back(DType::f32);
  return dtypes;
}

template <class Check>
void for_each_format(const Check& check) {
  for (const KvRowFormat& format : kKvFormats) {
    for (const DType dtype : scale_dtypes(format)) {
      SCOPED_TRACE(std::string(format.name) + " " + std::string(name_of(dtype)));
      check(format, dtype);
    }
  }
}

std::vector<float> round_trip(const KvRowFormat& format, DType dtype, const std::vector<float>& row, float global = 1) {
  Bytes bytes(static_cast<std::int64_t>(row.size()));
  std::vector<float> back(row.size());
  detail::encode_kv_row(format, bytes.row(dtype), global, row);
  detail::decode_kv_row(format, bytes.row(dtype), global, back);
  return back;
}

std::vector<float> normal_row(std::int64_t dim, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> row(static_cast<std::size_t>(dim));
  for (float& value : row) value = normal(random);
  return row;
}

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

TEST(KvFormat, EveryByteDecodesAsTheReferenceHasIt) {
  for_each_format([](const KvRowFormat& format, DType dtype) {
    for (int code = 0; code < 256; ++code) {
      for (const int scale : {0, 1, 60, 64, 127, 128, 130, 254, 255}) {
        Bytes bytes(64);
        std::fill(bytes.codes.begin(), bytes.codes.end(), static_cast<std::uint8_t>(code));
        std::fill(bytes.scales.begin(), bytes.scales.end(), static_cast<std::uint8_t>(scale));
        std::vector<double> want(32);
        std::vector<float> got(32);
        reference::decode_kv_row({format, bytes.codes.data(), bytes.scales.data(), dtype}, want);
        detail::decode_kv_row(format, bytes.row(dtype), 1.0f, got);
        for (std::size_t i = 0; i < want.size(); ++i)
          ASSERT_TRUE(same(got[i], static_cast<float>(want[i]))) << code << " " << scale << ": " << got[i] << " " << want[i];
      }
    }
  });
}

struct Set {
  std::string_view name;
  const cpu::KvRowKernels& kernels;
};

std::vector<Set> available_sets() {
  std::vector<Set> sets;
  const auto add = [&](auto isa) {
    if (isa.kUnavailable().empty()) sets.push_back({isa.kName, isa.kernels().kv_rows});
  };
  add(cpu::Scalar{});
#if defined(FOVEA_X86)
  add(cpu::Avx2{});
  add(cpu::Avx512{});
#elif defined(FOVEA_NEON)
  add(cpu::Neon{});
#endif
  return sets;
}

TEST(KvFormat, VectorCodeDecodesAsTheScalarCode) {
  std::mt19937 random(7);
  for_each_format([&](const KvRowFormat& format, DType dtype) {
    for (const Set& set : available_sets()) {
      for (const std::int64_t dim : {8, 24, 64, 96, 128}) {
        if (dim % format.dim_step() != 0) continue;
        // Exactly as much memory as a row has, so that a byte read behind it shows in sanitizers.
        std::vector<std::uint8_t> codes(static_cast<std::size_t>(format.code_bytes(dim)));
        std::vector<std::uint8_t> scales(static_cast<std::size_t>(format.row_bytes(dim, dtype) - format.code_bytes(dim)) +
                                         (format.has_scales() ? 0 : 4));
        for (std::uint8_t& byte : codes) byte = static_cast<std::uint8_t>(random());
        for (std::uint8_t& byte : scales) byte = static_cast<std::uint8_t>(random());
        const detail::KvRowBytes bytes{codes.data(), scales.data(), dtype};
        std::vector<float> want(static_cast<std::size_t>(dim)), got(static_cast<std::size_t>(dim + 15) / 16 * 16);
        detail::decode_kv_row(format, bytes, 1.0f, want);
        const auto index = static_cast<std::size_t>(&format - kKvFormats.data());
        const cpu::Row code_row = codes.data(), scale_row = scales.data();
        set.kernels.decode[index]({.codes = &code_row, .scales = &scale_row, .count = 1, .f16_scale = dtype == DType::f16}, got.data(),
                                  static_cast<std::int64_t>(got.size()), static_cast<int>(dim));
        for (std::size_t i = 0; i < want.size(); ++i) ASSERT_TRUE(same(got[i], want[i])) << set.name << " " << dim << " " << i;
      }
    }
  });
}

TEST(KvFormat, ErrorsAreWithinHalfAStep) {
  for_each_format([](const KvRowFormat& format, DType dtype) {
    for (const float size : {1e-3f, 1.0f, 300.0f}) {
      std::vector<float> row = normal_row(128, 3);
      for (float& value : row) value *= size;
      const std::vector<float> back = round_trip(format, dtype, row);
      float largest = 0, error = 0;
      for (std::size_t i = 0; i < row.size(); ++i) {
        largest = std::max(largest, std::fabs(row[i]));
        error = std::max(error, std::fabs(row[i] - back[i]));
      }
      // Half a step at the top of the range, relative to the largest value; scales round too.
      const float step = format.code == KvCode::i8     ? 1 / 250.0f
                         : format.code == KvCode::u4   ? 1 / 14.0f
                         : format.code == KvCode::e4m3 ? 1 / 15.0f
                         : format.code == KvCode::e5m2 ? 1 / 7.9f
                                                       : 1 / 3.9f;
      if (format.has_global && size == 1e-3f && format.scale == KvScale::block_e4m3) continue;  // scales are subnormal without a global
      EXPECT_LE(error, largest * step) << size;
      EXPECT_GT(error, 0) << "a quantiser that is exact on noise quantises nothing";
    }
  });
}

TEST(KvFormat, ZeroRowsStayZero) {
  for_each_format([](const KvRowFormat& format, DType dtype) {
    for (const float value : round_trip(format, dtype, std::vector<float>(64))) EXPECT_EQ(value, 0);
  });
}

TEST(KvFormat, OneSignKeepsItsRange) {
  for (const float sign : {1.0f, -1.0f}) {
    std::vector<float> row(64);
    for (std::size_t i = 0; i < row.size(); ++i) row[i] = sign * (100 + static_cast<float>(i) / 16);
    for (const float value : round_trip(*kv_row_format(KvFormat::int4_token), DType::f32, row)) EXPECT_NEAR(value, sign * 102, 5);
  }
}

TEST(KvFormat, ScalesAreFiniteWhateverTheRow) {
  const float huge = std::numeric_limits<float>::max();
  for (const float odd : {kInfinity, -kInfinity, kNaN, huge, -huge, std::numeric_limits<float>::denorm_min()}) {
    for_each_format([&](const KvRowFormat& format, DType dtype) {
      std::vector<float> row = normal_row(64, 5);
      row[3] = odd;
      row[40] = -odd;
      const std::vector<float> back = round_trip(format, dtype, row);
      for (std::size_t i = 0; i < row.size(); ++i) {
        const bool may_be_nan = std::isnan(row[i]) && (format.code == KvCode::e4m3 || format.code == KvCode::e5m2);
        if (may_be_nan) {
          EXPECT_TRUE(std::isnan(back[i])) << odd;
        } else {
          EXPECT_TRUE(std::isfinite(back[i])) << odd << " at " << i << ": " << back[i];
        }
      }
    });
  }
}

TEST(KvFormat, ANaNLeavesTheOthersOfItsRowAlone) {
  for_each_format([](const KvRowFormat& format, DType dtype) {
    std::vector<float> row = normal_row(64, 9);
    row[5] = 0;
    const std::vector<float> want = round_trip(format, dtype, row);
    row[5] = kNaN;
    const std::vector<float> got = round_trip(format, dtype, row);
    for (std::size_t i = 0; i < row.size(); ++i) EXPECT_TRUE(i == 5 || got[i] == want[i]) << i;
  });
}

TEST(KvFormat, AGlobalScaleTakesPartOfTheRange) {
  const KvRowFormat& format = *kv_row_format(KvFormat::nvfp4);
  std::vector<float> row = normal_row(64, 11);
  for (float& value : row) value *= 1e-4f;
  const std::vector<float> back = round_trip(format, DType::e4m3, row, 1e-4f);
  for (std::size_t i = 0; i < row.size(); ++i) EXPECT_NEAR(back[i], row[i], 1e-4f);
}

TEST(KvFormat, E5m2IsTheUpperHalfOfF16) {
  for (int code = 0; code < 256; ++code) {
    const float value = detail::f32_from_e5m2(static_cast<std::uint8_t>(code));
    if (std::isinf(value)) {
      EXPECT_EQ(detail::e5m2_from_f32(value), (code & 0x80) | 0x7b) << "saturates";
    } else if (std::isnan(value)) {
      EXPECT_EQ(detail::e5m2_from_f32(value) & 0x7f, 0x7f);
    } else {
      EXPECT_EQ(detail::e5m2_from_f32(value), code);
      const float next = detail::f32_from_e5m2(static_cast<std::uint8_t>(code + 1));
      if (std::isfinite(next) && std::signbit(next) == std::signbit(value)) {
        const int even = code % 2 == 0 ? code : code + 1;
        EXPECT_EQ(detail::e5m2_from_f32((value + next) / 2), even) << "ties to even at " << code;
      }
    }
  }
}

}  // namespace
}  // namespace fovea
