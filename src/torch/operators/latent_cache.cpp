// SPDX-License-Identifier: Apache-2.0
/// Packing latent rows into a cache, and unpacking them.
#include "operation.hpp"

namespace fovea::binding {
namespace {

/// Both directions take rows, cache and slots in this order.
template <class Args, auto plan_function, bool has_rule>
struct Conversion {
  struct Call {
    explicit Call(Arguments& arguments)
        : rows(arguments.tensor()),
          cache(arguments.tensor()),
          slot_mapping(arguments.tensor()),
          format(arguments.text()),
          rule(has_rule && arguments.flag() ? ScaleRule::exact : ScaleRule::power_of_two),
          implementation(arguments.text()) {}

    PlanOptions options() const { return {.implementation = implementation}; }

    Tensor rows, cache, slot_mapping;
    std::string format;
    ScaleRule rule;
    std::string implementation;
  };

  static LatentCacheConversionDesc describe(const Call& call) {
    return {.rows = binding::describe(call.rows, "rows"), .cache = describe_cache(call.cache, call.format, "cache"), .rule = call.rule};
  }

  static constexpr auto kPlan = plan_function;

  static void check(const Call& call, const LatentCacheConversionDesc& desc) {
    check_vector(call.slot_mapping, "slot_mapping", DType::i64, desc.rows.shape[0]);
  }

  static Args args(const LatentCacheConversionDesc& /*desc*/, void* const* addresses) {
    return {addresses[0], addresses[1], static_cast<const std::int64_t*>(addresses[2])};
  }
};

using Quantize = Conversion<QuantizeLatentCacheArgs, plan_quantize_latent_cache, true>;
using Dequantize = Conversion<DequantizeLatentCacheArgs, plan_dequantize_latent_cache, false>;

}  // namespace

std::vector<Operation> latent_cache_operations() {
  return {operation<Quantize>("quantize_latent_cache(Tensor rows, Tensor(a!) cache, Tensor slot_mapping, str format, bool exact_scale, "
                              "str implementation)"),
          operation<Dequantize>("dequantize_latent_cache(Tensor(a!) rows, Tensor cache, Tensor slot_mapping, str format, "
                                "str implementation)")};
}

}  // namespace fovea::binding
