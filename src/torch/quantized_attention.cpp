// SPDX-License-Identifier: Apache-2.0
#include "fields.hpp"
#include "op/quantized_attention/fields.hpp"
#include "operators.hpp"

namespace fovea::binding {
namespace {

using QuantizeQkInt8Call = Call<detail::kQuantizeQkInt8Fields, Asks::implementation>;
using QuantizeVCall = Call<detail::kQuantizeVFields, Asks::implementation>;
using QuantizedAttentionCall = Call<detail::kQuantizedAttentionFields, Asks::options>;
using QuantizeAndAttendCall = Call<detail::kQuantizeAndAttendFields, Asks::options>;

}  // namespace

void quantize_qk_int8(StableIValue* stack, std::uint64_t, std::uint64_t) { run_call<QuantizeQkInt8Call, plan_quantize_qk_int8>(stack); }
void explain_quantize_qk_int8(StableIValue* stack, std::uint64_t, std::uint64_t) {
  explain_call<QuantizeQkInt8Call, plan_quantize_qk_int8>(stack);
}
void quantize_v(StableIValue* stack, std::uint64_t, std::uint64_t) { run_call<QuantizeVCall, plan_quantize_v>(stack); }
void explain_quantize_v(StableIValue* stack, std::uint64_t, std::uint64_t) { explain_call<QuantizeVCall, plan_quantize_v>(stack); }
void quantized_attention(StableIValue* stack, std::uint64_t, std::uint64_t) {
  run_call<QuantizedAttentionCall, plan_quantized_attention>(stack);
}
void explain_quantized_attention(StableIValue* stack, std::uint64_t, std::uint64_t) {
  explain_call<QuantizedAttentionCall, plan_quantized_attention>(stack);
}
void quantize_and_attend(StableIValue* stack, std::uint64_t, std::uint64_t) {
  run_call<QuantizeAndAttendCall, plan_quantize_and_attend>(stack);
}
void explain_quantize_and_attend(StableIValue* stack, std::uint64_t, std::uint64_t) {
  explain_call<QuantizeAndAttendCall, plan_quantize_and_attend>(stack);
}

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
