// SPDX-License-Identifier: Apache-2.0
/// Attention on quantised tensors is judged against double precision on the same tensors. The whole is judged against unquantised
/// attention, within twice the error of a plain 8-bit implementation. Some cases also check the accuracy that the operation promises.
#include <fmt/format.h>

#include <cmath>

#include "op/attention/problem.hpp"
#include "plain.hpp"
#include "quantized_trial.hpp"
#include "reference/reference.hpp"

namespace fovea::check {
namespace {

using Step = QuantizedCase::Step;

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Rows of one kv head and its query heads in double precision.
struct ExactRows {
  std::vector<double> q{}, k{}, v{};  ///< [group, seq_q, dim], [seq_k, dim]
};

/// Some query rows of a sequence, the same in each head of the group: all of them, or one.
struct RowRange {
  std::int64_t begin = 0, count = 0;
};

class QuantizedAttentionTrial final : public QuantizedTrial {
 public:
  explicit QuantizedAttentionTrial(const QuantizedCase& spec) : QuantizedTrial(spec) {
    if (!whole()) t_.store_quantized();
    attention_ = t_.attention_desc();
    attention_args_ = t_.attention_args();
    whole_ = t_.whole_desc();
    whole_args_ = t_.whole_args();
    seal();
  }

  Result<AnyPlan> plan(const PlanOptions& options, const Place& place) const override {
    return whole() ? forget_operation(plan_quantize_and_attend(whole_, place.device, options), whole_args_, place)
                   : forget_operation(plan_quantized_attention(attention_, place.device, options), attention_args_, place);
  }
  std::vector<Named> inputs() const override {
    if (whole()) return with_lengths({{"q", t_.q}, {"k", t_.k}, {"v", t_.v}});
    std::vector<Named> list{{"q", t_.q_int8}, {"k", t_.k_int8}, {"v", t_.v_out}, {"q_scale", t_.q_scale}, {"k_scale", t_.k_scale}};
    if (attention_.v_scale) list.push_back({"v_scale", t_.v_scale});
    if (attention_.v_mean) list.push_back({"v_mean", t_.v_mean});
    if (attention_.lse_shift) list.push_back({"lse_shift", t_.lse_shift});
    return with_lengths(std::move(list));
  }
  std::vector<Named> outputs() const override {
    std::vector<Named> list{{"out", t_.out}};
    if (spec().lse) list.push_back({"lse", t_.lse});
    return list;
  }
  Work work() const override {
    const double pairs = visible_pairs(spec().mask, spec().sequences), out = query_elements() * static_cast<double>(size_of(spec().dtype));
    const auto q_size = static_cast<double>(whole() ? size_of(spec().dtype) : 1);
    const double v_size = whole() ? q_size : static_cast<double>(size_of(spec().v_dtype));
    return {4 * pairs * static_cast<double>(spec().head * spec().dim), out + query_elements() * q_size + key_elements() * (q_size + v_size),
            DType::bf16};
  }

 protected:
  std::vector<Answer> expect() const override;
  void judge_outputs(Judgement& verdict) override;

 private:
  bool whole() const { return spec().step == Step::whole; }
  float scale() const { return spec().scale != 0 ? spec().scale : 1.0f / std::sqrt(static_cast<float>(spec().dim)); }
  std::vector<RowRange> known_rows(KvHead at) const;
  ExactRows sources(KvHead at) const;
  ExactRows dequantised(const QuantizedHead& from, bool with_mean = true) const;
  reference::AttentionOutput exact(const ExactRows& rows, KvHead at, RowRange range) const;
  PlainOutput plain(const QuantizedHead& from, KvHead at, RowRange range, E4m3Products products) const;
  /// lse of the quantised tensors, plus the contribution of the mean of K.
  double shifted(double lse, const QuantizedHead& from, std::int64_t i, std::int64_t row) const {
    return spec().smooth_k && std::isfinite(lse) ? lse + static_cast<double>(scale() * from.lse_shift[index(i)][index(row)]) : lse;
  }
  void answer(KvHead at, RowRange range, Answer& outs, Answer& lses) const;

  QuantizedAttentionDesc attention_{};
  QuantizedAttentionArgs attention_args_{};
  QuantizeAndAttendDesc whole_{};
  QuantizeAndAttendArgs whole_args_{};
};

/// A large case has known results for a dozen rows of one kv head.
std::vector<RowRange> QuantizedAttentionTrial::known_rows(KvHead at) const {
  constexpr std::int64_t kSamples = 12;
  const std::int64_t rows = t_.sequence(at.sequence).q;
  if (spec().tier != Tier::bench) return {{0, rows}};
  std::vector<RowRange> ranges;
  for (std::int64_t i = 0; i < kSamples && at.sequence == 0 && at.head == spec().kv_head / 2; ++i)
    ranges.push_back({i * (rows - 1) / (kSamples - 1), 1});
  return ranges;
}

ExactRows QuantizedAttentionTrial::sources(KvHead at) const {
  ExactRows rows{};
  const auto append = [](std::vector<double>& to, const PlainTokens& from) { to.insert(to.end(), from.values.begin(), from.values.end()); };
  for (std::int64_t i = 0; i < t_.group(); ++i) append(rows.q, t_.queries(at.sequence, at.head * t_.group() + i));
  append(rows.k, t_.keys(t_.k, at.sequence, at.head));
  append(rows.v, t_.keys(t_.v, at.sequence, at.head));
  return rows;
}

ExactRows QuantizedAttentionTrial::dequantised(const QuantizedHead& from, bool with_mean) const {
  const auto append = [&](std::vector<double>& to, const PlainCodes& codes) {
    for (std::size_t i = 0; i < codes.codes.size(); ++i) {
      const auto token = static_cast<std::int64_t>(i) / codes.dim, d = static_cast<std::int64_t>(i) % codes.dim;
      to.push_back(static_cast<double>(codes.codes[i]) * static_cast<double>(codes.scale(token, d)));
    }
  };
  ExactRows rows{};
  for (const PlainCodes& codes : from.q) append(rows.q, codes);
  append(rows.k, from.k);
  append(rows.v, from.v);
  for (std::size_t i = 0; spec().smooth_v && with_mean && i < rows.v.size(); ++i)
    rows.v[i] += static_cast<double>(from.v_mean[i % index(spec().dim)]);
  return rows;
}

reference::AttentionOutput QuantizedAttentionTrial::exact(const ExactRows& rows, KvHead at, RowRange range) const {
  const Sequence s = t_.sequence(at.sequence);
  const std::int64_t dim = spec().dim;
  AttentionDesc desc{.q = contiguous(DType::f64, {1, range.count, t_.group(), dim}),
                     .k = contiguous(DType::f64, {1, s.kv, 1, dim}),
                     .v = contiguous(DType::f64, {1, s.kv, 1, dim}),
                     .out = contiguous(DType::f64, {1, range.count, t_.group(), dim}),
                     .mask = range.count == s.q ? spec().mask : mask_of_row(spec().mask, s, range.begin),
                     .scale = spec().scale};
  desc.q.strides = {t_.group() * s.q * dim, dim, s.q * dim, 1};
  return reference::attention(detail::validate(desc, {}).value(),
                              {.q = rows.q.data() + range.begin * dim, .k = rows.k.data(), .v = rows.v.data()});
}

/// Attention on dequantised rows in f32. Weights are rounded as an operand beside V would be. With native products of e4m3, the mean of V
/// is added afterwards.
PlainOutput QuantizedAttentionTrial::plain(const QuantizedHead& from, KvHead at, RowRange range, E4m3Products products) const {
  const bool native = products == E4m3Products::native, add_mean = native && spec().smooth_v;
  const ExactRows rows = dequantised(from, !add_mean);
  const std::vector<float> q(rows.q.begin(), rows.q.end()), k(rows.k.begin(), rows.k.end()), v(rows.v.begin(), rows.v.end());
  const std::int64_t dim = spec().dim;
  const Sequence s = t_.sequence(at.sequence);
  PlainRow row{.operands = spec().v_dtype,
               .out = native ? DType::f32 : spec().dtype,
               .products = products,
               .e4m3_scores = false,
               .dqk = dim,
               .dv = dim,
               .score_scale = scale()};
  PlainOutput result(range.count * t_.group(), dim);
  for (std::int64_t i = 0; i < range.count * t_.group(); ++i) {
    const std::int64_t at_row = range.begin + i / t_.group(), head = i % t_.group();
    const Keys keys = visible_keys(spec().mask, s, at_row);
    if (keys.begin == keys.end) continue;
    row.attend(&q[index((head * s.q + at_row) * dim)],
               {&k[index(keys.begin * dim)], &v[index(keys.begin * dim)], dim, dim, keys.end - keys.begin}, &result.out[index(i * dim)]);
    for (std::int64_t d = 0; native && d < dim; ++d) {
      float& x = result.out[index(i * dim + d)];
      x = rounded(spec().dtype, add_mean ? x + from.v_mean[index(d)] : x);
    }
    result.lse[index(i)] = static_cast<float>(shifted(row.lse, from, head, at_row));
  }
  return result;
}

void QuantizedAttentionTrial::answer(KvHead at, RowRange range, Answer& outs, Answer& lses) const {
  const QuantizedHead codes = t_.quantized(at);
  const reference::AttentionOutput known = exact(whole() ? sources(at) : dequantised(codes), at, range);
  const PlainOutput simple = plain(codes, at, range, E4m3Products::widened);
  const bool has_native = !whole() && spec().v_dtype == DType::e4m3;
  const PlainOutput native = has_native ? plain(codes, at, range, E4m3Products::native) : PlainOutput(0, 0);
  const auto part = [](const std::vector<float>& all, std::int64_t from, std::int64_t count) {
    return all.empty() ? std::span<const float>() : std::span(&all[index(from)], index(count));
  };
  for (std::int64_t i = 0; i < range.count * t_.group(); ++i) {
    const std::int64_t row = range.begin + i / t_.group(), head = i % t_.group();
    const std::int64_t dim = spec().dim, to = at.head * t_.group() + head;
    outs.expect(t_.query_at(t_.out, at.sequence, row, to), {&known.out[index(i * dim)], index(dim)},
                {&simple.out[index(i * dim)], index(dim)}, part(native.out, i * dim, dim));
    if (!spec().lse) continue;
    const double lse = whole() ? known.lse[index(i)] : shifted(known.lse[index(i)], codes, head, row);
    lses.expect(t_.number_at(t_.lse, at.sequence, row, to), {&lse, 1}, {&simple.lse[index(i)], 1}, part(native.lse, i, 1));
  }
}

std::vector<Answer> QuantizedAttentionTrial::expect() const {
  Answer outs("out", t_.out, {spec().dim}), lses("lse", t_.lse, {1});
  lses.as_logarithm();
  for_each_kv_head([&](KvHead at) {
    std::vector<char> known(index(t_.sequence(at.sequence).q));
    for (const RowRange range : known_rows(at)) {
      answer(at, range, outs, lses);
      std::fill_n(known.begin() + range.begin, range.count, 1);
    }
    for (std::size_t i = 0; i < known.size() * index(t_.group()); ++i) {
      const auto row = static_cast<std::int64_t>(i) / t_.group(), head = at.head * t_.group() + static_cast<std::int64_t>(i) % t_.group();
      if (known[index(row)] != 0) continue;
      outs.expect_finite(t_.query_at(t_.out, at.sequence, row, head), spec().dim);
      if (spec().lse) lses.expect_finite(t_.number_at(t_.lse, at.sequence, row, head), 1);
    }
  });
  std::vector<Answer> answers{std::move(outs)};
  if (spec().lse) answers.push_back(std::move(lses));
  return answers;
}

void QuantizedAttentionTrial::judge_outputs(Judgement& verdict) {
  if (spec().gate) {
    struct Gate {
      double cosine, relative_l1;
    };
    const Gate gate = spec().v_dtype == DType::e4m3 ? Gate{0.9985, 0.055} : Gate{0.9998, 0.02};
    const Accuracy accuracy = answers().front().accuracy();
    verdict.note = fmt::format("cosine {:.6f} (at least {}), relative L1 {:.4f} (at most {})", accuracy.cosine, gate.cosine,
                               accuracy.relative_l1, gate.relative_l1);
    if (!(accuracy.cosine >= gate.cosine && accuracy.relative_l1 <= gate.relative_l1))
      verdict.fail("less accurate than promised: " + verdict.note);
  }
  QuantizedTrial::judge_outputs(verdict);
}

}  // namespace

std::unique_ptr<Trial> bind(const QuantizedCase& spec) {
  const bool quantiser = spec.step == Step::quantize_qk || spec.step == Step::quantize_v;
  return quantiser ? bind_quantiser(spec) : std::make_unique<QuantizedAttentionTrial>(spec);
}

}  // namespace fovea::check
