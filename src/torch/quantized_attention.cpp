// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <utility>

#include "dense.hpp"
#include "operators.hpp"

namespace fovea::binding {
namespace {

constexpr std::array kGranularities{std::pair{"block", Int8Granularity::block}, std::pair{"warp", Int8Granularity::warp},
                                    std::pair{"thread", Int8Granularity::thread}};

/// Which tokens share a scale, as torch says it.
struct Groups {
  std::string granularity;
  std::int64_t warp_rows;

  Int8Groups of_plan() const {
    if (warp_rows != 32 && warp_rows != 16) raise_invalid("groups.warp_rows", std::to_string(warp_rows), "32 or 16");
    for (const auto& [known, value] : kGranularities) {
      if (granularity == known) return {value, static_cast<int>(warp_rows)};
    }
    raise_invalid("groups.granularity", "\"" + granularity + "\"", "block, warp or thread");
  }
};

Groups take_groups(Arguments& arguments) { return {.granularity = arguments.text(), .warp_rows = arguments.integer()}; }

DType v_dtype_of(std::int32_t dtype) {
  if (dtype == aoti_torch_dtype_float16()) return DType::f16;
  if (dtype == aoti_torch_dtype_float8_e4m3fn()) return DType::e4m3;
  raise_invalid("v_dtype", dtype_text(dtype), "float16 or float8_e4m3fn");
}

/// How every call here ends.
struct Options {
  std::string implementation;
  bool batch_invariant = false;

  PlanOptions of_plan() const { return {.implementation = implementation, .batch_invariant = batch_invariant}; }
};

Options take_options(Arguments& arguments) { return {.implementation = arguments.text(), .batch_invariant = arguments.flag()}; }

struct QuantizeQkCall {
  Tensor q, k, q_int8, k_int8, q_scale, k_scale;
  OptionalTensor k_mean, lse_shift;
  Sequences sequences;
  Groups groups;
  Options options;

  static QuantizeQkCall take(Arguments arguments) {
    return {arguments.tensor(),        arguments.tensor(),     arguments.tensor(),          arguments.tensor(),
            arguments.tensor(),        arguments.tensor(),     arguments.optional_tensor(), arguments.optional_tensor(),
            take_sequences(arguments), take_groups(arguments), {arguments.text()}};
  }

  QuantizeQkInt8Plan plan() const {
    const QuantizeQkInt8Desc desc{.q = describe(q, "q"),
                                  .k = describe(k, "k"),
                                  .q_int8 = describe(q_int8, "q_int8"),
                                  .k_int8 = describe(k_int8, "k_int8"),
                                  .q_scale = describe(q_scale, "q_scale"),
                                  .k_scale = describe(k_scale, "k_scale"),
                                  .k_mean = describe(k_mean, "k_mean"),
                                  .lse_shift = describe(lse_shift, "lse_shift"),
                                  .ragged = describe_ragged(sequences, q, k),
                                  .groups = groups.of_plan()};
    return value_or_raise(plan_quantize_qk_int8(desc, call_device(), options.of_plan()));
  }

  QuantizeQkInt8Args args() const {
    return {.q = data(q),
            .k = data(k),
            .q_int8 = static_cast<std::int8_t*>(data(q_int8)),
            .k_int8 = static_cast<std::int8_t*>(data(k_int8)),
            .q_scale = static_cast<float*>(data(q_scale)),
            .k_scale = static_cast<float*>(data(k_scale)),
            .k_mean = data_or_null<float>(k_mean),
            .lse_shift = data_or_null<float>(lse_shift),
            .cu_seqlens_q = sequences.q_lengths(),
            .cu_seqlens_k = sequences.k_lengths()};
  }
};

struct QuantizeVCall {
  Tensor v, v_out;
  OptionalTensor v_scale, v_mean, cu_seqlens_k;
  std::optional<std::int64_t> max_seqlen_k;
  Options options;

  static QuantizeVCall take(Arguments arguments) {
    return {arguments.tensor(),          arguments.tensor(),           arguments.optional_tensor(), arguments.optional_tensor(),
            arguments.optional_tensor(), arguments.optional_integer(), {arguments.text()}};
  }

  std::optional<RaggedDesc> ragged() const {
    if (!cu_seqlens_k) {
      expect_none("max_seqlen_k", max_seqlen_k, "cu_seqlens_k");
      return std::nullopt;
    }
    return RaggedDesc{.batch = batch_of(*cu_seqlens_k, "cu_seqlens_k"), .max_seq_k = max_seqlen_k.value_or(rows_of(v))};
  }

  QuantizeVPlan plan() const {
    const QuantizeVDesc desc{.v = describe(v, "v"),
                             .v_out = describe(v_out, "v_out"),
                             .v_scale = describe(v_scale, "v_scale"),
                             .v_mean = describe(v_mean, "v_mean"),
                             .ragged = ragged()};
    return value_or_raise(plan_quantize_v(desc, call_device(), options.of_plan()));
  }

  QuantizeVArgs args() const {
    return {.v = data(v),
            .v_out = data(v_out),
            .v_scale = data_or_null<float>(v_scale),
            .v_mean = data_or_null<float>(v_mean),
            .cu_seqlens_k = cu_seqlens_k ? int32_vector(*cu_seqlens_k, "cu_seqlens_k", cu_seqlens_k->size(0)) : nullptr};
  }
};

struct QuantizedAttentionCall {
  Tensor q, k, v, q_scale, k_scale;
  OptionalTensor v_scale, v_mean, lse_shift;
  Tensor out;
  OptionalTensor lse;
  Sequences sequences;
  BandMask mask;
  double scale;
  Groups groups;
  Options options;

  static QuantizedAttentionCall take(Arguments arguments) {
    return {arguments.tensor(), arguments.tensor(),          arguments.tensor(),          arguments.tensor(),
            arguments.tensor(), arguments.optional_tensor(), arguments.optional_tensor(), arguments.optional_tensor(),
            arguments.tensor(), arguments.optional_tensor(), take_sequences(arguments),   take_mask(arguments),
            arguments.real(),   take_groups(arguments),      take_options(arguments)};
  }

  QuantizedAttentionPlan plan() const {
    const QuantizedAttentionDesc desc{.q = describe(q, "q"),
                                      .k = describe(k, "k"),
                                      .v = describe(v, "v"),
                                      .out = describe(out, "out"),
                                      .q_scale = describe(q_scale, "q_scale"),
                                      .k_scale = describe(k_scale, "k_scale"),
                                      .v_scale = describe(v_scale, "v_scale"),
                                      .v_mean = describe(v_mean, "v_mean"),
                                      .lse = describe(lse, "lse"),
                                      .lse_shift = describe(lse_shift, "lse_shift"),
                                      .ragged = describe_ragged(sequences, q, k),
                                      .mask = mask,
                                      .scale = narrow(scale, "scale"),
                                      .groups = groups.of_plan()};
    return value_or_raise(plan_quantized_attention(desc, call_device(), options.of_plan()));
  }

  QuantizedAttentionArgs args() const {
    return {.q = static_cast<const std::int8_t*>(data(q)),
            .k = static_cast<const std::int8_t*>(data(k)),
            .v = data(v),
            .out = data(out),
            .q_scale = static_cast<const float*>(data(q_scale)),
            .k_scale = static_cast<const float*>(data(k_scale)),
            .v_scale = data_or_null<const float>(v_scale),
            .v_mean = data_or_null<const float>(v_mean),
            .lse = data_or_null<float>(lse),
            .lse_shift = data_or_null<const float>(lse_shift),
            .cu_seqlens_q = sequences.q_lengths(),
            .cu_seqlens_k = sequences.k_lengths()};
  }
};

struct QuantizeAndAttendCall {
  Tensor q, k, v, out;
  OptionalTensor lse;
  Sequences sequences;
  BandMask mask;
  double scale;
  std::int32_t v_dtype;
  bool smooth_k, smooth_v;
  Groups groups;
  Options options;

  static QuantizeAndAttendCall take(Arguments arguments) {
    return {arguments.tensor(),
            arguments.tensor(),
            arguments.tensor(),
            arguments.tensor(),
            arguments.optional_tensor(),
            take_sequences(arguments),
            take_mask(arguments),
            arguments.real(),
            arguments.take<std::int32_t>(),
            arguments.flag(),
            arguments.flag(),
            take_groups(arguments),
            take_options(arguments)};
  }

  QuantizeAndAttendPlan plan() const {
    const QuantizeAndAttendDesc desc{.q = describe(q, "q"),
                                     .k = describe(k, "k"),
                                     .v = describe(v, "v"),
                                     .out = describe(out, "out"),
                                     .lse = describe(lse, "lse"),
                                     .ragged = describe_ragged(sequences, q, k),
                                     .mask = mask,
                                     .scale = narrow(scale, "scale"),
                                     .groups = groups.of_plan(),
                                     .v_dtype = v_dtype_of(v_dtype),
                                     .smooth_k = smooth_k,
                                     .smooth_v = smooth_v};
    return value_or_raise(plan_quantize_and_attend(desc, call_device(), options.of_plan()));
  }

  QuantizeAndAttendArgs args() const {
    return {.q = data(q),
            .k = data(k),
            .v = data(v),
            .out = data(out),
            .lse = data_or_null<float>(lse),
            .cu_seqlens_q = sequences.q_lengths(),
            .cu_seqlens_k = sequences.k_lengths()};
  }
};

template <class Call>
void run_call(StableIValue* stack) {
  const Call call = Call::take(Arguments(stack));
  follow_torch_threads();
  const auto plan = call.plan();
  raise_if_failed(binding::run(plan, call.args()));
}

template <class Call>
void explain_call(StableIValue* stack) {
  const Call call = Call::take(Arguments(stack));
  follow_torch_threads();
  stack[0] = text_result(call.plan().explain());
}

}  // namespace

void quantize_qk_int8(StableIValue* stack, std::uint64_t, std::uint64_t) { run_call<QuantizeQkCall>(stack); }
void explain_quantize_qk_int8(StableIValue* stack, std::uint64_t, std::uint64_t) { explain_call<QuantizeQkCall>(stack); }
void quantize_v(StableIValue* stack, std::uint64_t, std::uint64_t) { run_call<QuantizeVCall>(stack); }
void explain_quantize_v(StableIValue* stack, std::uint64_t, std::uint64_t) { explain_call<QuantizeVCall>(stack); }
void quantized_attention(StableIValue* stack, std::uint64_t, std::uint64_t) { run_call<QuantizedAttentionCall>(stack); }
void explain_quantized_attention(StableIValue* stack, std::uint64_t, std::uint64_t) { explain_call<QuantizedAttentionCall>(stack); }
void quantize_and_attend(StableIValue* stack, std::uint64_t, std::uint64_t) { run_call<QuantizeAndAttendCall>(stack); }
void explain_quantize_and_attend(StableIValue* stack, std::uint64_t, std::uint64_t) { explain_call<QuantizeAndAttendCall>(stack); }

void int8_groups(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::string text;
  for (const auto& [name, granularity] : kGranularities) {
    for (const int warp_rows : {32, 16}) {
      const Int8Groups groups{granularity, warp_rows};
      text.append(name);
      for (const std::int64_t number :
           {std::int64_t{warp_rows}, Int8Groups::kQBlock, groups.q_per_block(), Int8Groups::kKBlock, groups.k_per_block()})
        text.append("\t").append(std::to_string(number));
      text.append("\n");
    }
  }
  stack[0] = torch::stable::detail::from(text);
}

}  // namespace fovea::binding
