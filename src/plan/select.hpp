// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fovea/result.hpp"
#include "op/common/checks.hpp"
#include "plan/fill.hpp"
#include "plan/implementation.hpp"

namespace fovea::detail {

/// The error of a call that every implementation declines. Its message begins with what the caller can change most easily: the call itself,
/// an option of it that others handle, then the machine, then the kind of device. Each reason given there is a change that another
/// implementation waits for. The declines follow in this order too.
Error refusal_of(std::vector<Decline> declines);

/// A plan for a device that is only described. It explains, and refuses to run.
template <class Args>
class DescribedState final : public PlanState<Args> {
 public:
  DescribedState(std::shared_ptr<const PlanState<Args>> planned, Device device) : planned_(std::move(planned)), device_(device) {
    this->implementation = planned_->implementation;
    this->workspace_bytes = planned_->workspace_bytes;
  }
  Result<void> prepare(const Args&, Workspace, Stream) const override { return refusal(); }
  Result<void> run(const Args&, Workspace, Stream, bool) const override { return refusal(); }
  std::string tuning() const override { return planned_->tuning(); }

 private:
  Error refusal() const {
    return invalid("device.capability", device_.capability, "0, a device of this machine (a plan for a described one explains only)");
  }

  std::shared_ptr<const PlanState<Args>> planned_;
  Device device_;
};

/// Plans with `candidate`, or returns its reason to decline. Any error but `unsupported` stops the search.
template <class Operation>
PlanResult<typename Operation::Args> plan_with(const Implementation<Operation>& candidate, const typename Operation::Problem& problem,
                                               Device device, bool asked_for) {
  const bool described = device.capability != 0;  // a described device: `plan` itself decides whether it fits
  if (candidate.backend != device.backend) return declined("device.backend", name_of(device.backend), name_of(candidate.backend));
  if (const std::string_view reason = described ? "" : candidate.unavailable(); !reason.empty()) {
    return Error{ErrorCode::unsupported, "not available on this machine: " + std::string(reason)};
  }
  if (const auto* option = candidate.handled.missing(problem)) {
    return declined(option->name, "a value", "none (the implementation does not handle it)");
  }
  PlanResult<typename Operation::Args> planned = candidate.plan(problem, device);
  if (!planned) return planned;
  if (const std::string_view reason = asked_for || candidate.outdone == nullptr ? "" : candidate.outdone(problem, device);
      !reason.empty()) {
    return Error{ErrorCode::unsupported, std::string(reason)};
  }
  if (!described) return planned;
  return std::shared_ptr<const PlanState<typename Operation::Args>>(
      std::make_shared<DescribedState<typename Operation::Args>>(*std::move(planned), device));
}

template <class Operation>
Error unknown_implementation(std::string_view name) {
  std::string want;
  for (const auto& candidate : implementations_of<Operation>()) want.append(want.empty() ? "" : ", ").append(candidate.name);
  return invalid("options.implementation", name, "one of: " + want);
}

/// `reason` is everybody's: nothing computes such a call.
template <class Operation>
Error declined_by_all(const std::string& reason, const PlanOptions& options) {
  std::vector<Decline> declines;
  for (const auto& candidate : implementations_of<Operation>()) {
    if (options.implementation.empty() || candidate.name == options.implementation)
      declines.push_back(Decline{.implementation = std::string(candidate.name), .reason = reason});
  }
  return declines.empty() ? unknown_implementation<Operation>(options.implementation) : refusal_of(std::move(declines));
}

/// The first implementation in list order that does not decline, or the one that `options` forces.
template <class Operation>
Result<Plan<typename Operation::Args>> select(const typename Operation::Problem& problem, Device device, const PlanOptions& options) {
  if (std::optional<Error> wrong = environment_error()) return *std::move(wrong);
  if (device.backend == Backend::cpu && device.capability != 0)
    return invalid("device.capability", device.capability, "0 (of a processor)");
  const Implementations<Operation> list = implementations_of<Operation>();
  const auto wanted = [&](const auto& candidate) { return options.implementation.empty() || candidate.name == options.implementation; };
  if (std::none_of(list.begin(), list.end(), wanted)) return unknown_implementation<Operation>(options.implementation);

  std::vector<Decline> declines;
  for (const Implementation<Operation>& candidate : list) {
    if (!wanted(candidate)) continue;
    PlanResult<typename Operation::Args> planned = plan_with(candidate, problem, device, !options.implementation.empty());
    if (planned) {
      return Plan<typename Operation::Args>(filled<Operation>(*std::move(planned), problem, device, options), std::move(declines));
    }
    if (planned.error().code != ErrorCode::unsupported) return planned.error();
    declines.push_back({std::string(candidate.name), planned.error().message});
  }
  return refusal_of(std::move(declines));
}

}  // namespace fovea::detail
