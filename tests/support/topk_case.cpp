// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "indexer_case.hpp"
#include "noise.hpp"
#include "op/topk_rows/problem.hpp"
#include "reference/indexer.hpp"

namespace fovea::check {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

float value_of(Logits logits, std::int64_t column, Random& random) {
  const float number = random.normal();
  switch (logits) {
    case Logits::ties: return std::array{0.0f, -0.0f, 1.0f, -1.0f, 0.5f}[static_cast<std::size_t>(random.below(5))];
    case Logits::specials:
      return std::array{number, kNan, -kNan, kInf, -kInf, number, 3e-5f * number}[static_cast<std::size_t>(random.below(7))];
    case Logits::nan: return random.below(2) == 0 ? kNan : -kNan;
    case Logits::ascending: return static_cast<float>(column);
    case Logits::descending: return -static_cast<float>(column);
    case Logits::comb: return number + (column % 64 < 4 ? 100.0f : 0.0f);
    case Logits::normal: break;
  }
  return number;
}

class TopkTrial final : public Trial {
 public:
  TopkTrial(const TopkCase& spec, Random random) : spec_(spec) {
    desc_.logits = with_gaps(contiguous(spec.dtype, {spec.rows, spec.columns}), spec.gap);
    desc_.logits.alignment = promised_alignment(spec.gap);
    desc_.out = with_gaps(contiguous(DType::i32, {spec.rows, spec.k}), spec.gap);
    desc_.sorted = spec.sorted;
    desc_.page = spec.page;
    desc_.has_last = !spec.ranges.empty();
    desc_.has_first = desc_.has_last && !spec.only_last;
    desc_.has_offset = spec.offset;
    logits_ = HostileTensor(desc_.logits, desc_.logits.alignment > 0 ? 0 : size_of(spec.dtype));
    out_ = HostileTensor(desc_.out);
    make_vectors(random);
    fill_logits(random);
    args_ = {logits_.data(),           out_.as<std::int32_t>(),   table_.as<std::int32_t>(), first_.as<std::int32_t>(),
             last_.as<std::int32_t>(), offset_.as<std::int32_t>()};
    seal();
  }

  Result<AnyPlan> plan(const PlanOptions& options, const Place& place) const override {
    return forget_operation(plan_topk_rows(desc_, place.device, options), args_, place);
  }

  std::vector<Named> inputs() const override {
    std::vector<Named> all{{"logits", logits_}};
    if (first_) all.push_back({"first", first_});
    if (last_) all.push_back({"last", last_});
    if (offset_) all.push_back({"offset", offset_});
    if (table_) all.push_back({"block_table", table_});
    return all;
  }
  std::vector<Named> outputs() const override { return {{"out", out_}}; }

  Work work() const override {
    const double logits = static_cast<double>(spec_.rows * spec_.columns) * static_cast<double>(size_of(spec_.dtype));
    return {0, logits + static_cast<double>(spec_.rows * spec_.k) * 4, spec_.dtype};
  }

 protected:
  /// Lists are exact.
  void judge_outputs(Judgement& verdict) override {
    if (want_.empty()) make_expectation();
    for (std::int64_t row = 0; row < spec_.rows; ++row) {
      const std::int64_t at = out_.offset(row);
      const std::int32_t* got = out_.as<std::int32_t>() + at;
      const std::int32_t* want = want_.data() + row * spec_.k;
      for (std::int64_t i = 0; i < spec_.k && verdict.ok; ++i) {
        if (got[i] == want[i]) continue;
        verdict.fail("out[" + std::to_string(row) + ", " + std::to_string(i) + "]: got " + std::to_string(got[i]) + ", want " +
                     std::to_string(want[i]));
      }
      out_.restore(at, spec_.k);
    }
  }

 private:
  static HostileTensor vector_of(std::int64_t count) { return HostileTensor(contiguous(DType::i32, {count})); }

  void make_vectors(Random& random) {
    const auto count = static_cast<std::int64_t>(spec_.ranges.size());
    if (desc_.has_first) first_ = vector_of(spec_.rows);
    if (desc_.has_last) last_ = vector_of(spec_.rows);
    for (std::int64_t row = 0; row < spec_.rows && count > 0; ++row) {
      const Columns& range = spec_.ranges[static_cast<std::size_t>(row % count)];
      if (first_) first_.as<std::int32_t>()[row] = range.first;
      last_.as<std::int32_t>()[row] = range.last;
    }
    constexpr std::array<std::int32_t, 5> kOffsets{0, 17, -9, std::numeric_limits<std::int32_t>::max(),
                                                   std::numeric_limits<std::int32_t>::min()};
    if (spec_.offset) offset_ = vector_of(spec_.rows);
    for (std::int64_t row = 0; row < spec_.rows && spec_.offset; ++row)
      offset_.as<std::int32_t>()[row] = kOffsets[static_cast<std::size_t>(row) % kOffsets.size()];
    if (spec_.page == 0) return;
    constexpr std::int64_t kBatch = 3;
    desc_.block_table = with_gaps(contiguous(DType::i32, {kBatch, spec_.columns / spec_.page}), 3);  // the last columns may have no block
    table_ = HostileTensor(*desc_.block_table);
    for_each_element(table_.desc(), [&](auto, auto, auto, auto, std::int64_t at) {
      table_.as<std::int32_t>()[at] = static_cast<std::int32_t>(random.below(20) == 0 ? 2147480000 : random.below(40) - 1);
    });
  }

  void fill_logits(Random& random) {
    for (std::int64_t row = 0; row < spec_.rows; ++row) {
      const std::int64_t first = first_ ? first_.as<std::int32_t>()[row] : 0, last = last_ ? last_.as<std::int32_t>()[row] : spec_.columns;
      for (std::int64_t column = 0; column < spec_.columns; ++column) {
        const bool in_row = column >= first && column < last;
        const float outside = column % 2 == 0 ? kNan : kInf;
        logits_.set(logits_.offset(row, column), in_row ? value_of(spec_.logits, column, random) : outside);
      }
    }
  }

  void make_expectation() {
    want_.assign(static_cast<std::size_t>(spec_.rows * spec_.k) + 1, 0);
    TopkRowsDesc desc = desc_;
    desc.out = contiguous(DType::i32, {spec_.rows, spec_.k});
    TopkRowsArgs args = args_;
    args.out = want_.data();
    reference::topk_rows(detail::validate(desc, {}).value(), args);
  }

  TopkCase spec_;
  TopkRowsDesc desc_{};
  HostileTensor logits_{}, out_{}, first_{}, last_{}, offset_{}, table_{};
  TopkRowsArgs args_{};
  std::vector<std::int32_t> want_{};
};

}  // namespace

std::unique_ptr<Trial> bind(const TopkCase& spec) { return std::make_unique<TopkTrial>(spec, Random(11)); }

}  // namespace fovea::check
