// SPDX-License-Identifier: Apache-2.0
#include "held_plan.hpp"

#include <exception>

namespace fovea::binding {
namespace {

void release(void* plan) { delete static_cast<HeldPlan*>(plan); }

/// The text of what it throws, else null.
template <class F>
const char* without_exceptions(const F& f) {
  thread_local std::string wrong;
  try {
    f();
    return nullptr;
  } catch (const std::exception& error) {
    wrong = error.what();
  }
  return wrong.c_str();
}

template <auto member>
const char* call(const void* plan, void* const* addresses, void* schedule) {
  return without_exceptions([&] { (static_cast<const HeldPlan*>(plan)->*member)(addresses, schedule); });
}

const char* run_known(RunKnown* function, const KnownCall& of, bool& known) {
  return without_exceptions([&] { known = function(of); });
}

std::int32_t dtype(std::uint8_t code, std::uint8_t bits) {
  constexpr std::uint8_t kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kE4m3 = 10;  // DLPack's
  const struct {
    std::uint8_t code, bits;
    std::int32_t number;
  } rows[] = {{kFloat, 16, aoti_torch_dtype_float16()}, {kBfloat, 16, aoti_torch_dtype_bfloat16()},
              {kFloat, 32, aoti_torch_dtype_float32()}, {kE4m3, 8, aoti_torch_dtype_float8_e4m3fn()},
              {kInt, 64, aoti_torch_dtype_int64()},     {kInt, 32, aoti_torch_dtype_int32()},
              {kInt, 8, aoti_torch_dtype_int8()},       {kUInt, 8, aoti_torch_dtype_uint8()}};
  for (const auto& row : rows) {
    if (row.code == code && row.bits == bits) return row.number;
  }
  return -1;
}

}  // namespace

const PlanTable& plan_table() {
  static constexpr PlanTable kTable{
      .release = release, .run = call<&HeldPlan::run>, .prepare = call<&HeldPlan::prepare>, .run_known = run_known, .dtype = dtype};
  return kTable;
}

}  // namespace fovea::binding
