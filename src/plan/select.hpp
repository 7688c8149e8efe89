// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "op/common/checks.hpp"
#include "plan/implementation.hpp"

namespace fovea::detail {

/// Plans with `candidate`, or says why not. Any error but `unsupported` means that the search must stop.
template <class Impl>
PlanResult<typename Impl::Args> plan_with(const Impl& candidate, const typename Impl::Problem& problem, Device device) {
  if (candidate.backend != device.backend) return declined("device.backend", "another backend", "the one the implementation runs on");
  if (const std::string_view reason = candidate.unavailable(); !reason.empty()) {
    return Error{ErrorCode::unsupported, "not available on this machine: " + std::string(reason)};
  }
  return candidate.plan(problem, device);
}

template <class Impl>
Error unknown_implementation(std::span<const Impl> list, std::string_view name) {
  std::string want;
  for (const Impl& candidate : list) want.append(want.empty() ? "" : ", ").append(candidate.name);
  return invalid("options.implementation", name, "one of: " + want);
}

/// The first implementation in list order that does not decline; or the one that `options` forces.
template <class Impl>
Result<Plan<typename Impl::Args>> select(std::span<const Impl> list, const typename Impl::Problem& problem, Device device,
                                         const PlanOptions& options) {
  const auto wanted = [&](const Impl& candidate) { return options.implementation.empty() || candidate.name == options.implementation; };
  if (std::none_of(list.begin(), list.end(), wanted)) return unknown_implementation(list, options.implementation);

  std::vector<Decline> declines;
  for (const Impl& candidate : list) {
    if (!wanted(candidate)) continue;
    PlanResult<typename Impl::Args> planned = plan_with(candidate, problem, device);
    if (planned) return Plan<typename Impl::Args>(*std::move(planned), std::move(declines));
    if (planned.error().code != ErrorCode::unsupported) return planned.error();
    declines.push_back({std::string(candidate.name), planned.error().message});
  }
  return Error{ErrorCode::unsupported, "no implementation on this device accepts the call", std::move(declines)};
}

}  // namespace fovea::detail
