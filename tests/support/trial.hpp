// SPDX-License-Identifier: Apache-2.0
/// Every case, whatever its operation: a name, and tensors in memory that can be planned, run and judged. Tests, `fovea check` and
/// `fovea bench` know no more than this. An operation has plain data for its cases and a Trial; all_cases.cpp lists them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "answer.hpp"
#include "device_memory.hpp"
#include "fovea/plan.hpp"

namespace fovea::check {

/// quick: also under sanitizers. full: the whole table. bench: checked on sampled rows, then timed.
enum class Tier : std::uint8_t { quick, full, bench };

/// The least work and traffic of the operation, for rates against the ceilings.
struct Work {
  double flops = 0;
  double bytes = 0;
  DType operands = DType::f32;  ///< of the products
};

/// The memory of a call: the tensors themselves on the CPU, or their copies on a device.
struct Place {
  Device device{};
  const DeviceMemory* memory = nullptr;
  Stream stream{};
};

/// A plan without the type of its operation.
struct AnyPlan {
  std::string implementation{};
  std::size_t workspace_bytes = 0;
  std::string explanation{};
  std::function<Result<void>(Workspace)> prepare{}, run{}, run_prepared{};
};

/// Each run reads the arguments. They and the memory of the place must outlive the plan.
template <class Args>
Result<AnyPlan> forget_operation(const Result<Plan<Args>>& planned, const Args& args, const Place& place) {
  if (!planned) return planned.error();
  const auto moved = place.memory != nullptr ? std::make_shared<const DeviceArgs<Args>>(args, *place.memory) : nullptr;
  const auto call = [plan = *planned, &args, moved, stream = place.stream](auto member) {
    return [=, &args](Workspace workspace) { return (plan.*member)(moved ? moved->args : args, workspace, stream); };
  };
  return AnyPlan{.implementation = std::string(planned->implementation()),
                 .workspace_bytes = planned->workspace_bytes(),
                 .explanation = planned->explain(),
                 .prepare = call(&Plan<Args>::prepare),
                 .run = call(&Plan<Args>::run),
                 .run_prepared = call(&Plan<Args>::run_prepared)};
}

/// A case bound to memory: hostile tensors, filled and sealed, the arguments of the call, and the expected results.
class Trial {
 public:
  Trial() = default;
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;
  virtual ~Trial() = default;

  virtual Result<AnyPlan> plan(const PlanOptions& options, const Place& place = {}) const = 0;
  /// The tensors that the call must not change, and those that it writes. All pointers of the call lie in these.
  virtual std::vector<Named> inputs() const = 0;
  virtual std::vector<Named> outputs() const = 0;
  virtual Work work() const = 0;
  std::vector<Named> tensors() const;  ///< inputs, then outputs

  /// The results that the outputs must hold. Computed at the first call, which must come before a run that works in place.
  const std::vector<Answer>& answers();
  /// Judges the outputs and everything around them, and restores the poison.
  Judgement judge(E4m3Products products = E4m3Products::widened);
  /// Whether outputs, inputs and red zones are all as they were sealed. Otherwise names what is not.
  std::string what_changed() const;
  void reset_outputs() const;

 protected:
  /// Notes the contents of inputs and outputs as those that must stay. Called at the end of construction.
  void seal() const;
  virtual std::vector<Answer> expect() const { return {}; }
  /// Judges what a run must have written, and restores it. Any other change is wrong.
  virtual void judge_outputs(Judgement& verdict);

 private:
  std::vector<Answer> answers_{};
};

/// An entry of the table.
struct AnyCase {
  std::string name{};            ///< "latent_attention/decode/bf16-h16"
  std::string_view operation{};  ///< as ImplementationInfo has it
  Tier tier = Tier::full;
  std::function<std::unique_ptr<Trial>()> bind{};
};

/// The whole table, once per process: every operation.
const std::vector<AnyCase>& all_cases();
/// Null if there is none.
const AnyCase* find_any_case(std::string_view name);

}  // namespace fovea::check
