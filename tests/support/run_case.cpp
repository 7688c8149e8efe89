// SPDX-License-Identifier: Apache-2.0
#include "run_case.hpp"

#include <fmt/format.h>

namespace fovea::check {

Report run_case(Trial& trial, std::string_view implementation, bool batch_invariant) {
  const auto planned = trial.plan({.implementation = implementation, .batch_invariant = batch_invariant});
  if (!planned) {
    const Error& error = planned.error();
    if (error.code == ErrorCode::unsupported && error.declines.size() == 1) return {Status::declined, error.declines[0].reason};
    return {Status::failed, "plan: " + to_string(error)};
  }
  if (planned->implementation != implementation) {
    return {Status::failed, fmt::format("forced {}, but the plan is of {}", implementation, planned->implementation)};
  }
  trial.answers();  // before the run: outputs may lie on inputs
  const HostileWorkspace workspace(planned->workspace_bytes);
  if (const Result<void> ran = planned->run(workspace.view()); !ran) {
    const std::string changed = trial.what_changed();
    return {Status::failed, fmt::format("run: {}{}{}", to_string(ran.error()), changed.empty() ? "" : "; and ", changed)};
  }
  const Judgement verdict = trial.judge();
  Report report{verdict.ok ? Status::passed : Status::failed, verdict.message, verdict.worst};
  if (!workspace.red_zones_intact()) {
    report.status = Status::failed;
    report.message += report.message.empty() ? "memory outside the workspace was written" : "; memory outside the workspace was written";
  }
  return report;
}

std::string reproduce(std::string_view name, std::string_view implementation) {
  return fmt::format("fovea check --case {} --implementation {}", name, implementation);
}

}  // namespace fovea::check
