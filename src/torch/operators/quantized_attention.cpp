// SPDX-License-Identifier: Apache-2.0
/// 8-bit attention: the quantisers, attention on quantised tensors, and both in one call.
#include "op/quantized_attention/fields.hpp"
#include "operation.hpp"

namespace fovea::binding {
namespace {

using namespace detail;

using QuantizeQkInt8 = OverFields<kQuantizeQkInt8Fields, plan_quantize_qk_int8, Asks::implementation>;
using QuantizeV = OverFields<kQuantizeVFields, plan_quantize_v, Asks::implementation>;
using QuantizedAttention = OverFields<kQuantizedAttentionFields, plan_quantized_attention, Asks::options>;
using QuantizeAndAttend = OverFields<kQuantizeAndAttendFields, plan_quantize_and_attend, Asks::options>;

}  // namespace

std::vector<Operation> quantized_operations() {
  return {operation<QuantizeQkInt8>("quantize_qk_int8(" + schema_of(kQuantizeQkInt8Fields) + kImplementation),
          operation<QuantizeV>("quantize_v(" + schema_of(kQuantizeVFields) + kImplementation),
          operation<QuantizedAttention>("quantized_attention(" + schema_of(kQuantizedAttentionFields) + kOptions),
          operation<QuantizeAndAttend>("quantize_and_attend(" + schema_of(kQuantizeAndAttendFields) + kOptions)};
}

}  // namespace fovea::binding
