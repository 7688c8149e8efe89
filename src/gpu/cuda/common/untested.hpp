// SPDX-License-Identifier: Apache-2.0
/// Kernels that no device has run in their present form. A wrong answer is worse than a declined call.
#pragma once

#include <cstdlib>
#include <optional>
#include <string_view>

#include "fovea/result.hpp"
#include "op/common/checks.hpp"

namespace fovea::gpu {

/// Declines unless the environment has FOVEA_UNTESTED_KERNELS=1 when the first call asks.
inline std::optional<Error> decline_untested() {
  static const char* const kSet = std::getenv("FOVEA_UNTESTED_KERNELS");
  const std::string_view got = kSet == nullptr ? "" : kSet;
  if (got == "1") return std::nullopt;
  return detail::declined("FOVEA_UNTESTED_KERNELS", got.empty() ? "nothing" : got,
                          "1 for ALiBi, a bias or dropout: no device has run these kernels as they are");
}

}  // namespace fovea::gpu
