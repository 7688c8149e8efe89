// SPDX-License-Identifier: Apache-2.0
/// Which implementation declines which case, and with what words. Anything else that declines is a failure, and so is anything
/// listed here that does not.
#pragma once

#include <string_view>

#include "trial.hpp"

namespace fovea::check {

/// A part of the reason; empty when `implementation` must take the case.
inline std::string_view expected_decline(const AnyCase& entry, std::string_view implementation) {
  static_cast<void>(entry);
  static_cast<void>(implementation);
  return {};
}

}  // namespace fovea::check
