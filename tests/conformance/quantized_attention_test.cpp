// SPDX-License-Identifier: Apache-2.0
/// 8-bit attention: every implementation that this machine can run, forced by name. The quantisers are judged bit for bit against the
/// statement in the public header, the attention against double precision on the same codes, the whole against unquantised attention.
#include "allocations.hpp"
#include "quantized_case.hpp"

namespace fovea::check {
namespace {

std::vector<QuantizedCase> table() {
  const BandMask bottom_right{.right = 0}, top_left{.right = 0, .anchor = Anchor::top_left}, window{.left = 30, .right = 9};
  std::vector<QuantizedCase> cases;
  for (const DType v_dtype : {DType::f16, DType::e4m3}) {
    const auto add = [&](QuantizedCase spec) {
      spec.v_dtype = v_dtype;
      spec.name.append("_").append(name_of(v_dtype));
      cases.push_back(std::move(spec));
    };
    add({.name = "block", .groups = {Int8Granularity::block}, .lengths = {{131, 200}, {131, 200}}});
    add({.name = "warp32", .dtype = DType::f16, .groups = {Int8Granularity::warp, 32}, .lengths = {{260, 129}}, .mask = bottom_right});
    add({.name = "warp16", .dtype = DType::f32, .groups = {Int8Granularity::warp, 16}, .dim = 96, .lengths = {{90, 66}}, .mask = top_left});
    add({.name = "thread16", .groups = {Int8Granularity::thread, 16}, .dim = 128, .lengths = {{130, 700}}, .mask = bottom_right});
    add({.name = "thread32", .heads = 6, .dim = 96, .lengths = {{77, 190}, {77, 190}}, .smooth_v = true, .mask = window});
    add({.name = "d256", .heads = 3, .kv_heads = 1, .dim = 256, .lengths = {{100, 140}}, .mask = bottom_right});
    add({.name = "plain", .lengths = {{64, 64}}, .smooth_k = false});
    add({.name = "one", .lengths = {{1, 1}, {1, 1}}, .smooth_v = true});
    add({.name = "one_query", .heads = 4, .lengths = {{1, 2500}}, .mask = bottom_right});
    add({.name = "no_key", .lengths = {{5, 0}}});
    add({.name = "sees_nothing", .lengths = {{190, 60}}, .smooth_v = true, .mask = bottom_right});
    add({.name = "zero_rows", .lengths = {{150, 150}}, .mask = bottom_right, .zero_rows = true});
    add({.name = "negative_scale", .lengths = {{70, 90}}, .scale = -0.2f});
    add({.name = "biased",
         .heads = 4,
         .dim = 128,
         .lengths = {{130, 300}},
         .smooth_v = true,
         .mask = bottom_right,
         .k_bias = 8,
         .v_bias = 8});
    const std::vector<std::pair<std::int64_t, std::int64_t>> ragged{{0, 30}, {130, 130}, {20, 0}, {0, 0}, {1, 99}, {70, 200}, {129, 65}};
    for (const Int8Granularity granularity : {Int8Granularity::block, Int8Granularity::warp, Int8Granularity::thread}) {
      add({.name = "ragged" + std::to_string(static_cast<int>(granularity)),
           .groups = {granularity},
           .heads = 4,
           .lengths = ragged,
           .ragged = true,
           .smooth_v = true,
           .mask = bottom_right});
    }
  }
  return cases;
}

template <class Plan, class Args>
void run(const Plan& plan, const Args& args) {
  ASSERT_TRUE(plan) << plan.error().message;
  const TestWorkspace workspace(plan->workspace_bytes());
  const std::int64_t before = allocations();
  const Result<void> done = plan->run(args, workspace.get());
  const std::int64_t after = allocations();
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_TRUE(after == before || plan->implementation().starts_with("reference")) << "run() allocates";
  EXPECT_TRUE(workspace.storage.red_zones_intact());
}

void quantize(const BoundQuantized& bound, const std::string& isa) {
  run(plan_quantize_qk_int8(bound.qk_desc(), {}, {.implementation = isa + ".quantize_qk_int8"}), bound.qk_args());
  run(plan_quantize_v(bound.v_desc(), {}, {.implementation = isa + ".quantize_v"}), bound.v_args());
}

/// "cpu.avx2", "reference", ...
std::vector<std::string> backends() {
  std::vector<std::string> names;
  for (const std::string& name : available("quantized_attention")) names.push_back(name.substr(0, name.rfind('.')));
  return names;
}

float channel(const HostileTensor& numbers, std::int64_t b, std::int64_t head, std::int64_t d) {
  return numbers.at(numbers.offset(b, head, d));
}

/// q or k against the header, given the mean that the quantiser wrote.
void judge_side(const BoundQuantized& t, bool query) {
  const HostileTensor &from = query ? t.q : t.k, &to = query ? t.q_int8 : t.k_int8, &scales = query ? t.q_scale : t.k_scale;
  const std::int64_t heads = query ? t.spec.heads : t.spec.kv_heads, block = query ? 128 : 64;
  const std::int64_t per_block = query ? t.spec.groups.q_per_block() : t.spec.groups.k_per_block();
  for (std::int64_t b = 0; b < t.batch(); ++b) {
    const auto at = static_cast<std::size_t>(b);
    const std::int64_t length = query ? t.spec.lengths[at].first : t.spec.lengths[at].second;
    const std::int64_t first = t.spec.ragged ? ((query ? t.cu_q : t.cu_k)[at] / block + b) * per_block : 0;
    const auto value = [&](std::int64_t token, std::int64_t head, std::int64_t d) {
      const float x = from.at(t.at(from, b, token, head) + d);
      return query || !t.spec.smooth_k ? x : x - channel(t.k_mean, b, head, d);
    };
    for (std::int64_t head = 0; head < heads; ++head) {
      std::vector<float> amax(static_cast<std::size_t>((length + block - 1) / block * per_block), 1e-7f);
      const auto group = [&](std::int64_t token) {
        return static_cast<std::size_t>(query ? t.spec.groups.q_group(token) : t.spec.groups.k_group(token));
      };
      for (std::int64_t token = 0; token < length; ++token)
        for (std::int64_t d = 0; d < t.spec.dim; ++d) amax[group(token)] = std::max(amax[group(token)], std::fabs(value(token, head, d)));
      for (std::size_t g = 0; g < amax.size(); ++g) {
        const auto index = first + static_cast<std::int64_t>(g);
        ASSERT_EQ(scales.at(t.spec.ragged ? scales.offset(head, index) : scales.offset(b, head, index)), amax[g] / 127.0f) << "group " << g;
      }
      for (std::int64_t token = 0; token < length; ++token) {
        for (std::int64_t d = 0; d < t.spec.dim; ++d) {
          const int code = to.as<std::int8_t>()[t.at(to, b, token, head) + d];
          ASSERT_EQ(code, static_cast<int>(std::nearbyint(value(token, head, d) * (127.0f / amax[group(token)])))) << token << ", " << d;
        }
      }
    }
  }
}

void judge_v(const BoundQuantized& t) {
  for (std::int64_t b = 0; b < t.batch(); ++b) {
    const std::int64_t length = t.spec.lengths[static_cast<std::size_t>(b)].second;
    for (std::int64_t head = 0; head < t.spec.kv_heads; ++head) {
      for (std::int64_t d = 0; d < t.spec.dim; ++d) {
        const auto value = [&](std::int64_t token) {
          const float x = t.v.at(t.at(t.v, b, token, head) + d);
          return t.spec.smooth_v ? x - channel(t.v_mean, b, head, d) : x;
        };
        float amax = 1e-7f;
        for (std::int64_t token = 0; token < length; ++token) amax = std::max(amax, std::fabs(value(token)));
        const bool scaled = t.spec.v_dtype == DType::e4m3;
        if (scaled) {
          ASSERT_EQ(channel(t.v_scale, b, head, d), amax / 448.0f);
        }
        for (std::int64_t token = 0; token < length; ++token) {
          const float want = rounded(t.spec.v_dtype, scaled ? value(token) * (448.0f / amax) : value(token));
          ASSERT_EQ(t.v_out.at(t.at(t.v_out, b, token, head) + d), want) << token << ", " << d;
        }
      }
    }
  }
}

/// The mean of f32 sums of a few tokens: within that many roundings of the exact one.
void judge_means(const BoundQuantized& t, const HostileTensor& from, const HostileTensor& mean) {
  for (std::int64_t b = 0; b < t.batch(); ++b) {
    const std::int64_t length = t.spec.lengths[static_cast<std::size_t>(b)].second;
    for (std::int64_t head = 0; head < t.spec.kv_heads; ++head) {
      for (std::int64_t d = 0; d < t.spec.dim; ++d) {
        double sum = 0, size = 0;
        for (std::int64_t token = 0; token < length; ++token) {
          const double x = from.at(t.at(from, b, token, head) + d);
          sum += x;
          size += std::fabs(x);
        }
        const auto count = static_cast<double>(std::max<std::int64_t>(length, 1));
        ASSERT_NEAR(static_cast<double>(channel(mean, b, head, d)), sum / count, 16 * 0x1p-24 * size / count);
      }
    }
  }
}

/// What a plain f32 implementation makes of the same codes, in the order of the reference.
std::vector<float> plain(const BoundQuantized& t, const detail::QuantizedAttentionProblem& problem,
                         const reference::AttentionOutput& want) {
  std::vector<float> result(want.out.size());
  const std::int64_t group = t.spec.heads / t.spec.kv_heads, dim = t.spec.dim;
  const auto scale_of = [&](const HostileTensor& scales, std::int64_t b, std::int64_t head, std::int64_t index) {
    return scales.at(t.spec.ragged ? scales.offset(head, index) : scales.offset(b, head, index));
  };
  for (std::int64_t b = 0; b < t.batch(); ++b) {
    const auto at = static_cast<std::size_t>(b);
    const auto [seq_q, seq_k] = t.spec.lengths[at];
    const std::int64_t q_first = t.spec.ragged ? (t.cu_q[at] / 128 + b) * t.spec.groups.q_per_block() : 0;
    const std::int64_t k_first = t.spec.ragged ? (t.cu_k[at] / 64 + b) * t.spec.groups.k_per_block() : 0;
    for (std::int64_t row = 0; row < seq_q; ++row) {
      const std::vector<std::int64_t> visible = reference::visible_keys(t.spec.mask, row, seq_q, seq_k);
      for (std::int64_t head = 0; head < t.spec.heads && !visible.empty(); ++head) {
        const std::int8_t* q = t.q_int8.as<std::int8_t>() + t.at(t.q_int8, b, row, head);
        std::vector<float> scores, sums(static_cast<std::size_t>(dim));
        for (const std::int64_t key : visible) {
          const std::int8_t* k = t.k_int8.as<std::int8_t>() + t.at(t.k_int8, b, key, head / group);
          std::int32_t dot = 0;
          for (std::int64_t d = 0; d < dim; ++d) dot += q[d] * k[d];
          scores.push_back(problem.scale * (static_cast<float>(dot) * scale_of(t.q_scale, b, head, q_first + t.spec.groups.q_group(row)) *
                                            scale_of(t.k_scale, b, head / group, k_first + t.spec.groups.k_group(key))));
        }
        const float most = *std::max_element(scores.begin(), scores.end());
        float total = 0;
        for (std::size_t i = 0; i < visible.size(); ++i) {
          const float weight = std::exp(scores[i] - most);
          total += weight;
          for (std::int64_t d = 0; d < dim; ++d)
            sums[static_cast<std::size_t>(d)] += weight * t.v_out.at(t.at(t.v_out, b, visible[i], head / group) + d);
        }
        const std::int64_t flat = ((t.spec.ragged ? t.cu_q[at] : b * seq_q) + row) * t.spec.heads + head;
        for (std::int64_t d = 0; d < dim; ++d) {
          float value = sums[static_cast<std::size_t>(d)] / total;
          if (problem.has_v_scale) value *= channel(t.v_scale, b, head / group, d);
          if (problem.has_v_mean) value += channel(t.v_mean, b, head / group, d);
          result[static_cast<std::size_t>(flat * dim + d)] = rounded(t.spec.dtype, value);
        }
      }
    }
  }
  return result;
}

/// Rows that belong to a sequence, [total_q, head, width], from out or lse; the others must still be poison.
std::vector<float> written_rows(const BoundQuantized& t, std::vector<float> values, const reference::AttentionOutput& want,
                                std::int64_t width) {
  for (std::size_t row = 0; row < want.written.size(); ++row) {
    if (want.written[row] != 0) continue;
    const auto first = values.begin() + static_cast<std::int64_t>(row) * t.spec.heads * width;
    for (auto value = first; value != first + t.spec.heads * width; ++value) {
      EXPECT_TRUE(std::isnan(*value)) << "a row of no sequence was written";
      *value = 0;
    }
  }
  return values;
}

/// The cases whose keys are all seen by some row: the whole leaves out the others, also from means and scales.
std::vector<QuantizedCase> seen_table() {
  std::vector<QuantizedCase> cases = table();
  std::erase_if(cases, [](const QuantizedCase& spec) {
    return std::any_of(spec.lengths.begin(), spec.lengths.end(), [&](const auto& length) {
      const std::vector<char> seen = reference::keys_seen(spec.mask, length.first, length.second);
      return std::find(seen.begin(), seen.end(), 0) != seen.end();
    });
  });
  return cases;
}

class Quantized : public testing::TestWithParam<QuantizedCase> {};
class QuantizedWhole : public Quantized {};

TEST_P(Quantized, QuantisersAreBitExact) {
  for (const std::string& isa : backends()) {
    SCOPED_TRACE(isa);
    const BoundQuantized bound(GetParam());
    quantize(bound, isa);
    judge_side(bound, true);
    judge_side(bound, false);
    judge_v(bound);
    if (bound.spec.smooth_k) judge_means(bound, bound.k, bound.k_mean);
    if (bound.spec.smooth_v) judge_means(bound, bound.v, bound.v_mean);
    for (const HostileTensor* tensor : {&bound.q_int8, &bound.k_int8, &bound.v_out, &bound.q_scale, &bound.k_scale, &bound.k_mean})
      EXPECT_TRUE(tensor->storage().red_zones_intact());
  }
}

TEST_P(Quantized, AttentionOnTheCodes) {
  const BoundQuantized bound(GetParam());
  quantize(bound, "reference");
  const detail::QuantizedAttentionProblem problem = *detail::validate(bound.attention_desc(), {});
  reference::AttentionOutput want = reference::quantized_attention(problem, bound.attention_args());
  for (std::size_t row = 0; row < want.written.size(); ++row) {
    const auto heads = static_cast<std::size_t>(bound.spec.heads);
    if (want.written[row] == 0) std::fill_n(want.lse.begin() + static_cast<std::int64_t>(row * heads), heads, 0.0);
  }
  const Tolerance tolerance = out_tolerance(plain(bound, problem, want), want.out, bound.spec.dtype);
  for (const std::string& isa : backends()) {
    SCOPED_TRACE(isa);
    poison(bound.out);
    poison(bound.lse);
    run(plan_quantized_attention(bound.attention_desc(), {}, {.implementation = isa + ".quantized_attention"}), bound.attention_args());
    expect_close(written_rows(bound, take(bound.out), want, bound.spec.dim), want.out, tolerance, "out");
    std::vector<float> lse = take(bound.lse);
    if (!bound.spec.ragged) lse = by_row(lse, bound.batch(), bound.spec.heads, bound.longest_q);
    expect_close(written_rows(bound, lse, want, 1), want.lse, kLseTolerance, "lse");
  }
}

/// Where all keys are seen, the one call gives the bits of its steps.
TEST_P(QuantizedWhole, IsItsSteps) {
  for (const std::string& isa : backends()) {
    SCOPED_TRACE(isa);
    const BoundQuantized bound(GetParam());
    quantize(bound, isa);
    run(plan_quantized_attention(bound.attention_desc(), {}, {.implementation = isa + ".quantized_attention"}), bound.attention_args());
    const std::vector<std::byte> steps(bound.out.storage().data(), bound.out.storage().data() + bound.out.storage().bytes());
    const std::vector<float> lse = take(bound.lse);
    poison(bound.out);
    poison(bound.lse);
    run(plan_quantize_and_attend(bound.whole_desc(), {}, {.implementation = isa + ".quantize_and_attend"}), bound.whole_args());
    EXPECT_EQ(std::memcmp(steps.data(), bound.out.storage().data(), steps.size()), 0);
    EXPECT_EQ(std::memcmp(lse.data(), take(bound.lse).data(), lse.size() * sizeof(float)), 0);
  }
}

const auto name_of_case = [](const testing::TestParamInfo<QuantizedCase>& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(Cases, Quantized, testing::ValuesIn(table()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Cases, QuantizedWhole, testing::ValuesIn(seen_table()), name_of_case);

}  // namespace
}  // namespace fovea::check
