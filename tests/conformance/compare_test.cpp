// SPDX-License-Identifier: Apache-2.0
/// Tests of the comparer: each mistake that it must catch is made on purpose.
#include "compare.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "bound_case.hpp"
#include "fovea/info.hpp"

namespace fovea::check {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr Tolerance kTolerance{.absolute = 1e-3};

struct Pair {
  std::vector<float> got;
  std::vector<double> want;
};

/// A million right elements, each with an error of half the tolerance.
Pair million() {
  Pair pair;
  for (int i = 0; i < 1'000'000; ++i) {
    pair.want.push_back(std::sin(0.37 * i));
    pair.got.push_back(static_cast<float>(pair.want.back() + (i % 2 == 0 ? 5e-4 : -5e-4)));
  }
  return pair;
}

TEST(Compare, AcceptsWhatIsRight) {
  const Pair pair = million();
  const Comparison result = compare(pair.got, pair.want, kTolerance);
  EXPECT_TRUE(result.ok());
  EXPECT_NEAR(result.largest_ratio, 0.5, 0.01);
  EXPECT_TRUE(compare({kNaN, kInf, -kInf, 0.0f}, {kNaN, kInf, -kInf, -0.0}, {}).ok());
}

TEST(Compare, RejectsOneWrongElementInAMillion) {
  Pair pair = million();
  pair.got[765'432] += 2e-3f;
  const Comparison result = compare(pair.got, pair.want, kTolerance);
  EXPECT_EQ(result.wrong, 1);
  EXPECT_EQ(result.worst_index, 765'432);
  EXPECT_NE(describe(result, {1000, 1000}).find("[765, 432]"), std::string::npos);
}

TEST(Compare, RejectsNaNAgainstNumberAndNumberAgainstNaN) {
  EXPECT_EQ(compare({1.0f, kNaN}, {1.0, 2.0}, {.absolute = 1e30}).wrong, 1);
  EXPECT_EQ(compare({1.0f, 2.0f}, {1.0, kNaN}, {.absolute = 1e30}).wrong, 1);
  EXPECT_EQ(compare({kNaN}, {kInf}, {.absolute = 1e30}).wrong, 1);
}

TEST(Compare, RelativeTolerancesKeepTheirSizeNearZero) {
  EXPECT_TRUE(compare({0.9e-3f, 100.09f}, {0.0, 100.0}, {.relative = 1e-3}).ok());
  EXPECT_EQ(compare({1.1e-3f, 100.11f}, {0.0, 100.0}, {.relative = 1e-3}).wrong, 2);
}

TEST(Compare, RejectsMisplacedInfinities) {
  EXPECT_EQ(compare({kInf}, {1e30}, {.absolute = 1e30, .relative = 1.0}).wrong, 1);
  EXPECT_EQ(compare({1e30f}, {kInf}, {.absolute = 1e30, .relative = 1.0}).wrong, 1);
  EXPECT_EQ(compare({-kInf}, {kInf}, {.absolute = 1e30, .relative = 1.0}).wrong, 1);
}

TEST(Compare, RejectsAllZerosAndShiftedRows) {
  Pair pair = million();
  std::vector<float> shifted(pair.got.begin() + 64, pair.got.end());
  EXPECT_FALSE(compare(shifted, pair.want, kTolerance).ok()) << "elements are missing";
  shifted.resize(pair.got.size());
  EXPECT_GT(compare(shifted, pair.want, kTolerance).wrong, 900'000);
  EXPECT_GT(compare(std::vector<float>(pair.got.size()), pair.want, kTolerance).wrong, 900'000);
  EXPECT_FALSE(compare({}, {1.0}, kTolerance).ok());
}

/// A case run by the reference, whose result is then spoilt.
class Judge : public ::testing::Test {
 protected:
  Judge() : bound_(bind(*find_case("attention/ragged/bf16-mixed"))) {
    bound_->answers();
    const auto planned = bound_->plan({.implementation = "reference.attention"});
    EXPECT_TRUE(planned && planned->run({}));
  }
  bool rejected() { return !bound_->judge().ok; }
  std::int64_t out_at(std::int64_t row, std::int64_t head) { return bound_->row_offset(bound_->out, row, head); }

  std::unique_ptr<BoundCase> bound_;
};

TEST_F(Judge, AcceptsTheReference) { EXPECT_EQ(bound_->judge().message, ""); }

TEST_F(Judge, RejectsRowsThatWereNotWritten) {
  bound_->reset_outputs();
  EXPECT_TRUE(rejected());
}

TEST_F(Judge, RejectsAShiftedRow) {
  for (std::int64_t x = 0; x < bound_->spec.dv; ++x) bound_->out.set(out_at(40, 1) + x, bound_->out.at(out_at(41, 1) + x));
  EXPECT_TRUE(rejected());
}

TEST_F(Judge, RejectsOneElementThatIsTwoUlpsOff) {
  const auto tolerance = static_cast<float>(bound_->answers().front().tolerance().absolute);
  const std::int64_t at = out_at(7, 2) + 13;
  bound_->out.set(at, bound_->out.at(at) + 2.5f * tolerance);
  EXPECT_TRUE(rejected());
}

TEST_F(Judge, RejectsASlightlyWrongLse) {
  const std::int64_t at = bound_->lse_offset(20, 3);
  bound_->lse.set(at, bound_->lse.at(at) * 1.0005f + 0.0005f);
  EXPECT_TRUE(rejected());
}

TEST_F(Judge, RejectsAWriteToAPaddingRow) {
  bound_->out.set(out_at(bound_->flat_rows() - 1, 0), 0.0f);
  EXPECT_TRUE(rejected());
}

TEST_F(Judge, RejectsAWriteToTheRedZone) {
  const auto past_the_end = span_of(bound_->out.desc()) + 5;
#if !defined(__SANITIZE_ADDRESS__)  // otherwise the sanitizer would stop here
  bound_->out.set(past_the_end, 0.0f);
  EXPECT_TRUE(rejected());
#else
  static_cast<void>(past_the_end);
#endif
}

TEST_F(Judge, RejectsAChangedInput) {
  bound_->k.set(0, bound_->k.at(0) + 1.0f);
  EXPECT_TRUE(rejected());
}

/// A case of each operation, run by the reference, and spoilt in every way that does not depend on its computation.
TEST(JudgeOfEveryOperation, RejectsMissingWrongAndStrayWrites) {
  for (const char* name :
       {"attention/gqa/bf16-9on3", "attention_backward/sink/bf16-all-kinds", "paged_attention/mixed/bf16-page16",
        "paged_cache_append/page/bf16-page16", "merge_states/parts/bf16-3", "latent_attention/decode/bf16-h16",
        "sparse_latent_attention/paged/bf16", "quantize_latent_cache/format/v32_fp8-bf16-exact",
        "dequantize_latent_cache/format/v32_fp8-bf16", "quantize_qk_int8/ragged/warp32", "quantize_v/smoothing/both-e4m3",
        "quantized_attention/granularity/block-f16", "quantize_and_attend/granularity/warp32-f16"}) {
    SCOPED_TRACE(name);
    const AnyCase& entry = *find_any_case(name);
    const auto trial = entry.bind();
    trial->answers();
    EXPECT_FALSE(trial->judge().ok) << "nothing was written";
    const auto planned = trial->plan({.implementation = "reference." + std::string(entry.operation)});
    ASSERT_TRUE(planned);
    const auto judge_after = [&](auto&& spoil) {
      EXPECT_TRUE(planned->run({}));
      spoil();
      return trial->judge().message;
    };
    EXPECT_EQ(judge_after([] {}), "");
    for (const Named& output : trial->outputs()) {
      SCOPED_TRACE(output.name);
      const Storage& storage = output.tensor.storage();
      const std::size_t size = size_of(output.tensor.desc().dtype), last_byte = storage.bytes() / 2 / size * size + size - 1;
      EXPECT_NE(judge_after([&] { storage.data()[last_byte] ^= std::byte{0x40}; }), "") << "an exponent in the middle, written or not";
      EXPECT_NE(judge_after([&] { output.tensor.storage().restore(); }), "") << "this output is missing";
    }
    for (const Named& input : trial->inputs()) {
      SCOPED_TRACE(input.name);
      EXPECT_NE(judge_after([&] { input.tensor.storage().data()[0] ^= std::byte{0x01}; }), "") << "an input was changed";
      input.tensor.storage().data()[0] ^= std::byte{0x01};
    }
    EXPECT_EQ(judge_after([] {}), "") << "all was put back";
  }
}

TEST(Numeric, RoundsToNearestEvenAndSaturatesE4m3) {
  EXPECT_EQ(rounded(DType::bf16, 1.0f + 1.0f / 256), 1.0f);       // a tie, down to even
  EXPECT_EQ(rounded(DType::bf16, 1.0f + 3.0f / 256), 1.015625f);  // a tie, up to even
  EXPECT_EQ(rounded(DType::f16, 65520.0f), kInf);                 // the first number that overflows
  EXPECT_EQ(rounded(DType::f16, 5.9604645e-8f), 5.9604645e-8f);   // the smallest subnormal
  EXPECT_EQ(rounded(DType::e4m3, 1000.0f), 448.0f);
  EXPECT_EQ(rounded(DType::e4m3, -0.001953125f), -0.001953125f);  // the smallest subnormal
  EXPECT_EQ(rounded(DType::e4m3, 17.0f), 16.0f);
  EXPECT_TRUE(std::isnan(rounded(DType::e4m3, kNaN)) && std::isnan(rounded(DType::f16, kNaN)) && std::isnan(rounded(DType::bf16, kNaN)));
  EXPECT_EQ(ulp(DType::bf16, 3.0), 1.0 / 64);
  EXPECT_EQ(ulp(DType::f16, 1.0), 1.0 / 1024);
}

TEST(Table, NamesAreUnique) {
  std::vector<std::string> names;
  for (const AnyCase& entry : all_cases()) names.push_back(entry.name);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

TEST(Table, HasCasesOfEveryOperation) {
  for (const ImplementationInfo& info : implementations())
    for (const Tier tier : {Tier::quick, Tier::bench})
      EXPECT_TRUE(std::any_of(all_cases().begin(), all_cases().end(), [&](const AnyCase& entry) {
        return entry.operation == info.operation && entry.tier == tier;
      })) << info.operation;
}

}  // namespace
}  // namespace fovea::check
