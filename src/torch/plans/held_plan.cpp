// SPDX-License-Identifier: Apache-2.0
#include "held_plan.hpp"

#include <exception>

namespace fovea::binding {
namespace {

void release(void* plan) { delete static_cast<HeldPlan*>(plan); }

template <auto member>
const char* without_exceptions(const void* plan, void* const* addresses, void* schedule) {
  thread_local std::string wrong;
  try {
    (static_cast<const HeldPlan*>(plan)->*member)(addresses, schedule);
    return nullptr;
  } catch (const std::exception& error) {
    wrong = error.what();
  }
  return wrong.c_str();
}

}  // namespace

const PlanTable& plan_table() {
  static constexpr PlanTable kTable{
      .release = release, .run = without_exceptions<&HeldPlan::run>, .prepare = without_exceptions<&HeldPlan::prepare>};
  return kTable;
}

}  // namespace fovea::binding
