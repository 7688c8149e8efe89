// SPDX-License-Identifier: Apache-2.0
/// Which implementation declines which case, and with what words. Anything else that declines is a failure, and so is anything
/// listed here that does not.
#pragma once

#include <string_view>

#include "case.hpp"

namespace fovea::check {

/// A part of the reason; empty when `implementation` must take the case.
inline std::string_view expected_decline(const Case& spec, std::string_view implementation) {
  static_cast<void>(spec);
  static_cast<void>(implementation);
  return {};
}

}  // namespace fovea::check
