// SPDX-License-Identifier: Apache-2.0
/// The quantisers, judged bit for bit.
#include <fmt/format.h>

#include <cmath>

#include "quantized_trial.hpp"

namespace fovea::check {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

bool same(float got, float want) { return got == want || (std::isnan(got) && std::isnan(want)); }

/// Compares and restores what a quantiser wrote.
class ExactJudge {
 public:
  ExactJudge(std::string_view name, const HostileTensor& tensor) : name_(name), tensor_(tensor) {}

  void expect(std::int64_t at, float want) {
    const float got = tensor_.at(at);
    if (!same(got, want) && wrong_++ == 0) first_ = fmt::format("first at {} of its memory: got {:.9g}, want {:.9g}", at, got, want);
  }
  void expect_row(std::int64_t at, const PlainCodes& want, std::int64_t token) {
    for (std::int64_t d = 0; d < want.dim; ++d) expect(at + d, want.code(token, d));
    tensor_.restore(at, want.dim);
  }
  void expect_number(std::int64_t at, float want) {
    expect(at, want);
    tensor_.restore(at, 1);
  }
  void report(Judgement& verdict) const {
    if (wrong_ > 0) verdict.fail(fmt::format("{}: {} elements wrong, {}", name_, wrong_, first_));
  }

 private:
  std::string_view name_;
  const HostileTensor& tensor_;
  std::int64_t wrong_ = 0;
  std::string first_{};
};

std::vector<double> exact_mean(const PlainTokens& tokens) {
  std::vector<double> mean(index(tokens.dim));
  for (std::int64_t token = 0; token < tokens.tokens(); ++token)
    for (std::int64_t d = 0; d < tokens.dim; ++d) mean[index(d)] += static_cast<double>(tokens.row(token)[d]);
  for (double& sum : mean) sum /= static_cast<double>(std::max<std::int64_t>(tokens.tokens(), 1));
  return mean;
}

class QuantizeQkTrial final : public QuantizedTrial {
 public:
  explicit QuantizeQkTrial(const QuantizedCase& spec) : QuantizedTrial(spec), desc_(t_.qk_desc()), args_(t_.qk_args()) { seal(); }

  Result<AnyPlan> plan(const PlanOptions& options, const Place& place) const override {
    return forget_operation(plan_quantize_qk_int8(desc_, place.device, options), args_, place);
  }
  std::vector<Named> inputs() const override { return with_lengths({{"q", t_.q}, {"k", t_.k}}); }
  std::vector<Named> outputs() const override {
    std::vector<Named> list{{"q_int8", t_.q_int8}, {"k_int8", t_.k_int8}, {"q_scale", t_.q_scale}, {"k_scale", t_.k_scale}};
    if (desc_.k_mean) list.push_back({"k_mean", t_.k_mean});
    if (desc_.lse_shift) list.push_back({"lse_shift", t_.lse_shift});
    return list;
  }
  Work work() const override {
    return {0, (query_elements() + key_elements()) * static_cast<double>(size_of(spec().dtype) + 1), spec().dtype};
  }

 protected:
  /// Quantised values follow from the mean that was written.
  void judge_outputs(Judgement& verdict) override {
    ExactJudge q("q_int8", t_.q_int8), k("k_int8", t_.k_int8), q_scale("q_scale", t_.q_scale), k_scale("k_scale", t_.k_scale);
    for_each_kv_head([&](KvHead at) {
      const auto [b, head] = at;
      const PlainCodes keys = plain_int8(centred_keys(at), spec().groups, false);
      for (std::int64_t key = 0; key < t_.sequence(b).kv; ++key) k.expect_row(t_.key_at(t_.k_int8, b, key, head), keys, key);
      for (std::size_t g = 0; g < keys.scales.size(); ++g)
        k_scale.expect_number(t_.k_scale_at(b, head, static_cast<std::int64_t>(g)), keys.scales[g]);
      for (std::int64_t i = head * t_.group(); i < (head + 1) * t_.group(); ++i) {
        const PlainCodes rows = plain_int8(t_.queries(b, i), spec().groups, true);
        for (std::int64_t row = 0; row < t_.sequence(b).q; ++row) q.expect_row(t_.query_at(t_.q_int8, b, row, i), rows, row);
        for (std::size_t g = 0; g < rows.scales.size(); ++g)
          q_scale.expect_number(t_.q_scale_at(b, i, static_cast<std::int64_t>(g)), rows.scales[g]);
      }
    });
    for (const ExactJudge* judge : {&q, &k, &q_scale, &k_scale}) judge->report(verdict);
    QuantizedTrial::judge_outputs(verdict);
  }

  std::vector<Answer> expect() const override {
    if (!desc_.k_mean) return {};
    Answer mean("k_mean", t_.k_mean, {spec().dim}), shift("lse_shift", t_.lse_shift, {1});
    for_each_kv_head([&](KvHead at) {
      const auto [b, head] = at;
      const PlainTokens keys = t_.keys(t_.k, b, head);
      mean.expect(t_.k_mean.offset(b, head), exact_mean(keys), keys.mean());
      for (std::int64_t i = head * t_.group(); desc_.lse_shift && i < (head + 1) * t_.group(); ++i) expect_shift(shift, b, i, keys);
    });
    std::vector<Answer> answers{std::move(mean)};
    if (desc_.lse_shift) answers.push_back(std::move(shift));
    return answers;
  }

 private:
  PlainTokens centred_keys(KvHead at) const {
    PlainTokens keys = t_.keys(t_.k, at.sequence, at.head);
    if (!desc_.k_mean) return keys;
    std::vector<float> mean;
    for (std::int64_t d = 0; d < spec().dim; ++d) mean.push_back(t_.k_mean.at(t_.k_mean.offset(at.sequence, at.head, d)));
    return keys.less(mean);
  }

  /// q . mean; the plain version uses the mean of plain f32 sums.
  void expect_shift(Answer& answer, std::int64_t b, std::int64_t head, const PlainTokens& keys) const {
    const PlainTokens rows = t_.queries(b, head);
    const std::vector<double> mean = exact_mean(keys);
    const std::vector<float> plain_mean = keys.mean();
    for (std::int64_t row = 0; row < rows.tokens(); ++row) {
      double exact = 0;
      float plain = 0;
      for (std::int64_t d = 0; d < rows.dim; ++d) {
        exact += static_cast<double>(rows.row(row)[d]) * mean[index(d)];
        plain += rows.row(row)[d] * plain_mean[index(d)];
      }
      answer.expect(t_.number_at(t_.lse_shift, b, row, head), {&exact, 1}, {&plain, 1});
    }
  }

  QuantizeQkInt8Desc desc_;
  QuantizeQkInt8Args args_;
};

class QuantizeVTrial final : public QuantizedTrial {
 public:
  explicit QuantizeVTrial(const QuantizedCase& spec) : QuantizedTrial(spec), desc_(t_.v_desc()), args_(t_.v_args()) { seal(); }

  Result<AnyPlan> plan(const PlanOptions& options, const Place& place) const override {
    return forget_operation(plan_quantize_v(desc_, place.device, options), args_, place);
  }
  std::vector<Named> inputs() const override { return with_lengths({{"v", t_.v}}, false); }
  std::vector<Named> outputs() const override {
    std::vector<Named> list{{"v_out", t_.v_out}};
    if (desc_.v_scale) list.push_back({"v_scale", t_.v_scale});
    if (desc_.v_mean) list.push_back({"v_mean", t_.v_mean});
    return list;
  }
  Work work() const override {
    return {0, key_elements() * static_cast<double>(size_of(spec().dtype) + size_of(spec().v_dtype)), spec().dtype};
  }

 protected:
  void judge_outputs(Judgement& verdict) override {
    ExactJudge v("v_out", t_.v_out), scale("v_scale", t_.v_scale);
    for_each_kv_head([&](KvHead at) {
      const auto [b, head] = at;
      PlainTokens values = t_.keys(t_.v, b, head);
      std::vector<float> mean;
      for (std::int64_t d = 0; desc_.v_mean && d < spec().dim; ++d) mean.push_back(t_.v_mean.at(t_.v_mean.offset(b, head, d)));
      const PlainCodes codes = plain_v(desc_.v_mean ? values.less(mean) : values, spec().v_dtype);
      for (std::int64_t key = 0; key < t_.sequence(b).kv; ++key) v.expect_row(t_.key_at(t_.v_out, b, key, head), codes, key);
      for (std::size_t d = 0; d < codes.scales.size(); ++d)
        scale.expect_number(t_.v_scale.offset(b, head, static_cast<std::int64_t>(d)), codes.scales[d]);
    });
    v.report(verdict);
    scale.report(verdict);
    QuantizedTrial::judge_outputs(verdict);
  }

  std::vector<Answer> expect() const override {
    if (!desc_.v_mean) return {};
    Answer mean("v_mean", t_.v_mean, {spec().dim});
    for_each_kv_head([&](KvHead at) {
      const PlainTokens values = t_.keys(t_.v, at.sequence, at.head);
      mean.expect(t_.v_mean.offset(at.sequence, at.head), exact_mean(values), values.mean());
    });
    return {std::move(mean)};
  }

 private:
  QuantizeVDesc desc_;
  QuantizeVArgs args_;
};

}  // namespace

std::unique_ptr<Trial> bind_quantiser(const QuantizedCase& spec) {
  if (spec.step == QuantizedCase::Step::quantize_qk) return std::make_unique<QuantizeQkTrial>(spec);
  return std::make_unique<QuantizeVTrial>(spec);
}

}  // namespace fovea::check
