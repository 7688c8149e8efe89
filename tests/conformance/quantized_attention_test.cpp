// SPDX-License-Identifier: Apache-2.0
/// 8-bit attention beyond the case table: rounding at every boundary, the whole against its steps, smoothing, NaN, and errors.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "../quantized_cases.hpp"
#include "fovea/info.hpp"
#include "quantized_tensors.hpp"
#include "run_case.hpp"

namespace fovea::check {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// "cpu.avx2", "reference", ...: all that run here.
std::vector<std::string> backends() {
  std::vector<std::string> names;
  for (const ImplementationInfo& info : implementations())
    if (info.operation == "quantized_attention" && info.available && info.backend == Backend::cpu)
      names.emplace_back(info.name.substr(0, info.name.rfind('.')));
  return names;
}

/// avx512vnni and amx have products of their own, and avx512's quantisers.
std::string quantiser_of(const std::string& backend) {
  return backend == "cpu.avx512vnni" || backend == "cpu.amx" ? "cpu.avx512" : backend;
}

template <class Plan, class Args>
void run(const Plan& plan, const Args& args) {
  ASSERT_TRUE(plan) << plan.error().message;
  const HostileWorkspace workspace(plan->workspace_bytes());
  const Result<void> done = plan->run(args, workspace.view());
  ASSERT_TRUE(done) << done.error().message;
}

/// A number, and the quantised value that it rounds to.
struct Rounding {
  float value, code;
};

/// f32 tokens of one head and 64 channels, the values one after the other; the last channel of each token holds the largest magnitude.
HostileTensor tokens_of(const std::vector<Rounding>& roundings, float largest) {
  const auto tokens = static_cast<std::int64_t>(roundings.size() + 62) / 63;
  HostileTensor tensor(contiguous(DType::f32, {1, tokens, 1, 64}));
  for (std::int64_t i = 0; i < tokens * 64; ++i) tensor.set(i, i % 64 == 63 ? largest : 0.0f);
  for (std::size_t i = 0; i < roundings.size(); ++i) tensor.set(static_cast<std::int64_t>(i / 63 * 64 + i % 63), roundings[i].value);
  return tensor;
}

void expect_codes(const HostileTensor& codes, const std::vector<Rounding>& roundings) {
  for (std::size_t i = 0; i < roundings.size(); ++i) {
    const float got = codes.at(static_cast<std::int64_t>(i / 63 * 64 + i % 63));
    EXPECT_EQ(got, roundings[i].code) << "of " << roundings[i].value;
  }
}

/// Both sides of every boundary between two quantised values, and the boundary itself, with a scale of 1.
TEST(QuantizedRounding, Int8IsHalfToEvenAtEveryBoundary) {
  std::vector<Rounding> roundings{{0.0f, 0}, {-0.0f, 0}, {1e-30f, 0}};
  for (int code = 0; code < 127; ++code)
    for (const float sign : {1.0f, -1.0f}) {
      const float middle = static_cast<float>(code) + 0.5f, even = static_cast<float>(code + code % 2);
      roundings.push_back({sign * middle, sign * even});
      roundings.push_back({sign * std::nextafter(middle, 0.0f), sign * static_cast<float>(code)});
      roundings.push_back({sign * std::nextafter(middle, kInf), sign * static_cast<float>(code + 1)});
    }
  const HostileTensor from = tokens_of(roundings, 127.0f);
  for (const std::string& backend : backends()) {
    SCOPED_TRACE(backend);
    TensorDesc to = from.desc();
    to.dtype = DType::i8;
    const Int8Groups groups{Int8Granularity::block};
    const HostileTensor q(to), k(to), q_scale(groups.q_scale(to)), k_scale(groups.k_scale(to));
    const QuantizeQkInt8Desc desc{.q = from.desc(),
                                  .k = from.desc(),
                                  .q_int8 = to,
                                  .k_int8 = to,
                                  .q_scale = q_scale.desc(),
                                  .k_scale = k_scale.desc(),
                                  .groups = groups};
    run(plan_quantize_qk_int8(desc, {}, {.implementation = quantiser_of(backend) + ".quantize_qk_int8"}),
        QuantizeQkInt8Args{.q = from.data(),
                           .k = from.data(),
                           .q_int8 = q.as<std::int8_t>(),
                           .k_int8 = k.as<std::int8_t>(),
                           .q_scale = q_scale.as<float>(),
                           .k_scale = k_scale.as<float>()});
    expect_codes(q, roundings);
    expect_codes(k, roundings);
    EXPECT_EQ(q_scale.at(0), 1.0f);
    EXPECT_EQ(k_scale.at(0), 1.0f);
  }
}

/// Every value of the small type, and the midpoint to the next one.
std::vector<Rounding> boundaries(DType dtype, std::uint32_t largest) {
  std::vector<Rounding> roundings;
  for (std::uint32_t code = 0; code < largest; ++code) {
    const std::uint32_t next = code + 1, even = code % 2 == 0 ? code : next;
    const float low = load(dtype, &code, 0), high = load(dtype, &next, 0), middle = 0.5f * (low + high);
    for (const float sign : {1.0f, -1.0f}) {
      roundings.push_back({sign * low, sign * low});
      roundings.push_back({sign * middle, sign * load(dtype, &even, 0)});
      roundings.push_back({sign * std::nextafter(middle, 0.0f), sign * low});
      roundings.push_back({sign * std::nextafter(middle, kInf), sign * high});
    }
  }
  return roundings;
}

void expect_v_rounding(DType dtype, const std::vector<Rounding>& roundings, float largest) {
  // a channel has one scale: each number is a token, and the largest number is a token of its own
  const auto tokens = static_cast<std::int64_t>(roundings.size() + 1);
  HostileTensor from(contiguous(DType::f32, {1, tokens, 1, 64}));
  for (std::int64_t i = 0; i < tokens * 64; ++i)
    from.set(i, i / 64 + 1 < tokens ? roundings[static_cast<std::size_t>(i / 64)].value : largest);
  for (const std::string& backend : backends()) {
    SCOPED_TRACE(backend);
    TensorDesc to = from.desc();
    to.dtype = dtype;
    const HostileTensor codes(to), scale(Int8Groups::channels(to));
    QuantizeVDesc desc{.v = from.desc(), .v_out = to};
    if (dtype == DType::e4m3) desc.v_scale = scale.desc();
    run(plan_quantize_v(desc, {}, {.implementation = quantiser_of(backend) + ".quantize_v"}),
        QuantizeVArgs{.v = from.data(), .v_out = codes.data(), .v_scale = dtype == DType::e4m3 ? scale.as<float>() : nullptr});
    for (std::int64_t i = 0; i < (tokens - 1) * 64; ++i) {
      const Rounding& rounding = roundings[static_cast<std::size_t>(i / 64)];
      ASSERT_EQ(codes.at(i), rounding.code) << "of " << rounding.value << " in channel " << i % 64;
    }
    if (dtype == DType::e4m3) {
      EXPECT_EQ(scale.at(0), 1.0f);
    }
  }
}

TEST(QuantizedRounding, E4m3IsHalfToEvenAtEveryBoundary) { expect_v_rounding(DType::e4m3, boundaries(DType::e4m3, 0x7e), 448.0f); }

TEST(QuantizedRounding, F16IsHalfToEvenAndOverflowsToInfinity) {
  std::vector<Rounding> all = boundaries(DType::f16, 0x7bff), some;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (i < 8192 || i % 101 == 0 || i + 256 > all.size()) some.push_back(all[i]);  // all subnormal numbers, and some of each binade
  some.push_back({65520.0f, kInf});
  some.push_back({-65520.0f, -kInf});
  some.push_back({65519.99f, 65504.0f});
  some.push_back({3e38f, kInf});
  expect_v_rounding(DType::f16, some, 0.0f);
}

/// The floor under amax keeps zeros zeros, and gives smaller numbers a quantised value of their own.
TEST(QuantizedRounding, GroupsOfNearlyNothing) {
  const std::vector<Rounding> roundings{{0.0f, 0}, {1e-7f, 127}, {-1e-7f, -127}, {1e-9f, 1}, {-4e-10f, -1}, {3e-10f, 0}};
  const HostileTensor from = tokens_of(roundings, 0.0f);
  TensorDesc to = from.desc();
  to.dtype = DType::i8;
  const Int8Groups groups{};
  for (const std::string& backend : backends()) {
    SCOPED_TRACE(backend);
    const HostileTensor q(to), k(to), q_scale(groups.q_scale(to)), k_scale(groups.k_scale(to));
    const QuantizeQkInt8Desc desc{
        .q = from.desc(), .k = from.desc(), .q_int8 = to, .k_int8 = to, .q_scale = q_scale.desc(), .k_scale = k_scale.desc()};
    run(plan_quantize_qk_int8(desc, {}, {.implementation = quantiser_of(backend) + ".quantize_qk_int8"}),
        QuantizeQkInt8Args{.q = from.data(),
                           .k = from.data(),
                           .q_int8 = q.as<std::int8_t>(),
                           .k_int8 = k.as<std::int8_t>(),
                           .q_scale = q_scale.as<float>(),
                           .k_scale = k_scale.as<float>()});
    expect_codes(k, roundings);
    for (std::int64_t group = 0; group < 4; ++group) EXPECT_EQ(k_scale.at(group), 1e-7f / 127.0f) << "with or without a token";
  }
}

bool all_keys_seen(const QuantizedCase& spec) {
  return std::all_of(spec.sequences.begin(), spec.sequences.end(), [&](const Sequence& s) {
    std::vector<char> seen(static_cast<std::size_t>(s.kv));
    for (std::int64_t row = 0; row < s.q; ++row) {
      const Keys keys = visible_keys(spec.mask, s, row);
      std::fill(seen.begin() + keys.begin, seen.begin() + keys.end, 1);
    }
    return std::find(seen.begin(), seen.end(), 0) == seen.end();
  });
}

std::vector<std::byte> bytes_of(const HostileTensor& tensor) {
  return {tensor.storage().data(), tensor.storage().data() + tensor.storage().bytes()};
}

/// If every key is visible, the one call gives the bits of its steps.
TEST(QuantizedAttention, TheWholeIsItsSteps) {
  int cases = 0;
  for (const QuantizedCase& spec : quantized_cases()) {
    if (spec.step != QuantizedCase::Step::whole || spec.tier != Tier::quick || !all_keys_seen(spec)) continue;
    ++cases;
    for (const std::string& backend : backends()) {
      SCOPED_TRACE(spec.name + " " + backend);
      const QuantizedTensors steps(spec), whole(spec);
      const auto plan = plan_quantize_and_attend(whole.whole_desc(), {}, {.implementation = backend + ".quantize_and_attend"});
      if (!plan && backend == "cpu.amx") continue;  // some types and head dims: expected_declines.hpp
      run(plan_quantize_qk_int8(steps.qk_desc(), {}, {.implementation = quantiser_of(backend) + ".quantize_qk_int8"}), steps.qk_args());
      run(plan_quantize_v(steps.v_desc(), {}, {.implementation = quantiser_of(backend) + ".quantize_v"}), steps.v_args());
      run(plan_quantized_attention(steps.attention_desc(), {}, {.implementation = backend + ".quantized_attention"}),
          steps.attention_args());
      run(plan, whole.whole_args());
      EXPECT_EQ(bytes_of(steps.out), bytes_of(whole.out));
      EXPECT_EQ(bytes_of(steps.lse), bytes_of(whole.lse));
    }
  }
  EXPECT_GT(cases, 20);
}

/// Smoothing keeps the promised accuracy: without it the same data miss it.
TEST(QuantizedAttention, BiasedKeysNeedSmoothing) {
  QuantizedCase spec{.name = "biased", .dim = 128, .sequences = {{256, 256}}, .values = QuantizedCase::Values::biased_k, .gate = true};
  for (const std::string& backend : backends()) {
    spec.smooth_k = true;
    EXPECT_EQ(run_case(*bind(spec), backend + ".quantize_and_attend").status, Status::passed);
    spec.smooth_k = false;
    const Report report = run_case(*bind(spec), backend + ".quantize_and_attend");
    EXPECT_EQ(report.message.substr(0, 27), "less accurate than promised") << report.message;
  }
}

/// A visible NaN makes its group NaN and nothing else. Rows before the group's first key stay as they were.
TEST(QuantizedAttention, ANanStaysInItsGroup) {
  const QuantizedCase spec{.sequences = {{256, 256}}, .smooth_k = false, .mask = causal()};
  for (const std::string& backend : backends()) {
    QuantizedTensors t(spec);
    t.k.set(t.key_at(t.k, 0, 130, 1) + 5, std::nanf(""));
    run(plan_quantize_and_attend(t.whole_desc(), {}, {.implementation = backend + ".quantize_and_attend"}), t.whole_args());
    for (std::int64_t row = 0; row < 256; ++row) {
      EXPECT_FALSE(std::isnan(t.out.at(t.query_at(t.out, 0, row, 0)))) << backend << " row " << row;
      // keys 130 and 131 share a group with 138, 139, ...: key 130 is the first of it that a row sees
      EXPECT_EQ(std::isnan(t.out.at(t.query_at(t.out, 0, row, 1))), row >= 130) << backend << " row " << row;
    }
  }
}

template <class Plan>
std::string error_of(const Plan& plan) {
  return plan ? "none" : plan.error().message;
}

void expect_part(const std::string& message, const char* part) { EXPECT_NE(message.find(part), std::string::npos) << message; }

TEST(QuantizedErrors, OfTheQuantisers) {
  const QuantizedTensors t(QuantizedCase{.gap = 0});
  const auto refused = [&](auto&& spoil, const char* part) {
    QuantizeQkInt8Desc desc = t.qk_desc();
    spoil(desc);
    expect_part(error_of(plan_quantize_qk_int8(desc)), part);
  };
  using Qk = QuantizeQkInt8Desc;
  refused([](Qk& d) { d.groups.warp_rows = 24; }, "groups.warp_rows: got 24, want 32 or 16");
  refused([](Qk& d) { d.groups.granularity = static_cast<Int8Granularity>(3); }, "groups.granularity: got 3, want block, warp or thread");
  refused([](Qk& d) { d.q.dtype = d.k.dtype = DType::f64; }, "q.dtype: got f64, want f32 or f16 or bf16");
  refused([](Qk& d) { d.k.dtype = DType::f16; }, "k.dtype: got f16, want bf16");
  refused([](Qk& d) { d.q_int8.dtype = DType::e4m3; }, "q_int8.dtype: got e4m3, want i8");
  refused([](Qk& d) { d.k.rank = 1 << 20; }, "k.rank: got 1048576, want 4 [batch, seq_k, kv_head, head_dim]");
  refused([](Qk& d) { d.k_int8.shape[1] = 69; }, "k_int8.shape[1] (seq_k): got 69, want 70 (k)");
  refused([](Qk& d) { d.q_scale.shape[2] = 7; }, "q_scale.shape[2] (group): got 7, want 32");
  refused([](Qk& d) { d.k_scale.strides[1] = 0; }, "k_scale.strides: got elements that share memory");
  refused([](Qk& d) { d.k_mean.reset(); }, "lse_shift: got a tensor, want none (without k_mean there is no shift)");
  refused(
      [](Qk& d) {
        d.q = contiguous(DType::bf16, {1, 70, 3, 64}), d.q_int8 = contiguous(DType::i8, {1, 70, 3, 64});
      },
      "k.shape (kv_head): got 2, want a divisor of 3 (head)");
  QuantizeVDesc v = t.v_desc();
  v.v_scale = t.v_scale.desc();
  expect_part(error_of(plan_quantize_v(v)), "v_scale: got a tensor, want a tensor for e4m3, none for f16");
  v = t.v_desc();
  v.v_out.dtype = DType::bf16;
  expect_part(error_of(plan_quantize_v(v)), "v_out.dtype: got bf16, want f16 or e4m3");
}

TEST(QuantizedErrors, OfTheAttention) {
  const QuantizedTensors t(QuantizedCase{});
  QuantizedAttentionDesc attention = t.attention_desc();
  attention.k.dtype = DType::f16;
  expect_part(error_of(plan_quantized_attention(attention)), "k.dtype: got f16, want i8");
  attention = t.attention_desc();
  attention.lse.reset();
  expect_part(error_of(plan_quantized_attention(attention)), "lse_shift: got a tensor, want none (without lse nothing is shifted)");
  QuantizeAndAttendDesc whole = t.whole_desc();
  whole.v_dtype = DType::bf16;
  expect_part(error_of(plan_quantize_and_attend(whole)), "v_dtype: got bf16, want f16 or e4m3");
  const QuantizedTensors narrow(QuantizedCase{.dim = 72});
  const auto declined = plan_quantize_and_attend(narrow.whole_desc());
  ASSERT_FALSE(declined);
  EXPECT_EQ(declined.error().code, ErrorCode::unsupported);
  expect_part(error_of(declined), "q.shape (head_dim): got 72, want 64, 96, 128 or 256");
}

TEST(QuantizedErrors, OfTheArguments) {
  const QuantizedTensors t(QuantizedCase{.v_dtype = DType::e4m3, .ragged = true, .smooth_v = true});
  const auto whole = plan_quantize_and_attend(t.whole_desc());
  const auto qk = plan_quantize_qk_int8(t.qk_desc());
  const auto v = plan_quantize_v(t.v_desc());
  const auto attention = plan_quantized_attention(t.attention_desc());
  ASSERT_TRUE(whole && qk && v && attention);
  expect_part(whole->run(t.whole_args()).error().message, "workspace.bytes: got null");
  const HostileWorkspace workspace(std::max(whole->workspace_bytes(), attention->workspace_bytes()));
  const auto refused = [&](const auto& plan, auto args, auto member, const char* part) {
    args.*member = nullptr;
    const Result<void> ran = plan->run(args, workspace.view());
    ASSERT_FALSE(ran);
    expect_part(ran.error().message, part);
  };
  refused(whole, t.whole_args(), &QuantizeAndAttendArgs::k, "args.k (pointer): got null");
  refused(whole, t.whole_args(), &QuantizeAndAttendArgs::cu_seqlens_q, "args.cu_seqlens_q (pointer): got null");
  refused(qk, t.qk_args(), &QuantizeQkInt8Args::k_mean, "args.k_mean (pointer): got null");
  refused(qk, t.qk_args(), &QuantizeQkInt8Args::q_scale, "args.q_scale (pointer): got null");
  refused(v, t.v_args(), &QuantizeVArgs::v_scale, "args.v_scale (pointer): got null");
  refused(v, t.v_args(), &QuantizeVArgs::v_mean, "args.v_mean (pointer): got null");
  refused(attention, t.attention_args(), &QuantizedAttentionArgs::k_scale, "args.k_scale (pointer): got null");
  refused(attention, t.attention_args(), &QuantizedAttentionArgs::v_mean, "args.v_mean (pointer): got null");
  refused(attention, t.attention_args(), &QuantizedAttentionArgs::lse_shift, "args.lse_shift (pointer): got null");
  const std::int32_t beyond[] = {0, 1000};
  QuantizeVArgs args = t.v_args();
  args.cu_seqlens_k = beyond;
  expect_part(v->run(args).error().message, "cu_seqlens_k");
}

}  // namespace
}  // namespace fovea::check
