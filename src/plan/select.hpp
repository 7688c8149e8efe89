// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "op/common/checks.hpp"
#include "plan/implementation.hpp"

namespace fovea::detail {

/// Plans with `candidate`, or says why not. Any error but `unsupported` means that the search must stop.
template <class Operation>
PlanResult<typename Operation::Args> plan_with(const Implementation<Operation>& candidate, const typename Operation::Problem& problem,
                                               Device device) {
  if (candidate.backend != device.backend) return declined("device.backend", name_of(device.backend), name_of(candidate.backend));
  if (const std::string_view reason = candidate.unavailable(); !reason.empty()) {
    return Error{ErrorCode::unsupported, "not available on this machine: " + std::string(reason)};
  }
  return candidate.plan(problem, device);
}

template <class Operation>
Error unknown_implementation(std::string_view name) {
  std::string want;
  for (const auto& candidate : implementations_of<Operation>()) want.append(want.empty() ? "" : ", ").append(candidate.name);
  return invalid("options.implementation", name, "one of: " + want);
}

/// The first implementation in list order that does not decline; or the one that `options` forces.
template <class Operation>
Result<Plan<typename Operation::Args>> select(const typename Operation::Problem& problem, Device device, const PlanOptions& options) {
  const Implementations<Operation> list = implementations_of<Operation>();
  const auto wanted = [&](const auto& candidate) { return options.implementation.empty() || candidate.name == options.implementation; };
  if (std::none_of(list.begin(), list.end(), wanted)) return unknown_implementation<Operation>(options.implementation);

  std::vector<Decline> declines;
  for (const Implementation<Operation>& candidate : list) {
    if (!wanted(candidate)) continue;
    const bool asked_for = !options.implementation.empty();
    if (const std::string_view reason = asked_for || candidate.outdone == nullptr ? "" : candidate.outdone(); !reason.empty()) {
      declines.push_back({std::string(candidate.name), std::string(reason)});
      continue;
    }
    PlanResult<typename Operation::Args> planned = plan_with(candidate, problem, device);
    if (planned) return Plan<typename Operation::Args>(*std::move(planned), std::move(declines));
    if (planned.error().code != ErrorCode::unsupported) return planned.error();
    declines.push_back({std::string(candidate.name), planned.error().message});
  }
  return Error{ErrorCode::unsupported, "no implementation on this device accepts the call", std::move(declines)};
}

}  // namespace fovea::detail
