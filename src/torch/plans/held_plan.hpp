// SPDX-License-Identifier: Apache-2.0
/// A plan that Python holds: it runs over any memory that fits its description.
#pragma once

#include <memory>
#include <string>

#include "plan_cache.hpp"
#include "python_table.hpp"

namespace fovea::binding {

class HeldPlan {
 public:
  HeldPlan() = default;
  virtual ~HeldPlan() = default;
  HeldPlan(const HeldPlan&) = delete;
  HeldPlan& operator=(const HeldPlan&) = delete;

  /// Both as in PlanTable.
  virtual void run(void* const* addresses, void* schedule) const = 0;
  virtual void prepare(void* const* addresses, void* schedule) const = 0;
  /// Bytes of workspace, then the plan's own words, which begin with the implementation.
  virtual std::string text() const = 0;
};

/// `Operation::args(desc, addresses)` makes the arguments of the plan.
template <class Operation, class Planned>
class HeldPlanOf final : public HeldPlan {
 public:
  explicit HeldPlanOf(Planned planned) : planned_(std::move(planned)) {}

  void run(void* const* addresses, void* schedule) const override {
    begin_call();
    set_call_device(planned_.device);
    const auto args = Operation::args(planned_.desc, addresses);
    raise_if_failed(schedule == nullptr ? binding::run(planned_.plan, args)
                                        : planned_.plan.run_prepared(args, memory(schedule), call_stream()));
  }

  void prepare(void* const* addresses, void* schedule) const override {
    begin_call();
    set_call_device(planned_.device);
    raise_if_failed(planned_.plan.prepare(Operation::args(planned_.desc, addresses), memory(schedule), call_stream()));
  }

  std::string text() const override { return std::to_string(planned_.plan.workspace_bytes()) + "\n" + planned_.plan.explain(); }

 private:
  Workspace memory(void* schedule) const { return {schedule, planned_.plan.workspace_bytes()}; }

  Planned planned_;
};

template <class Operation, class Planned>
std::unique_ptr<HeldPlan> held_plan(Planned planned) {
  return std::make_unique<HeldPlanOf<Operation, Planned>>(std::move(planned));
}

const PlanTable& plan_table();

}  // namespace fovea::binding
