// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fovea/device.hpp"

namespace fovea {

/// One row of the ordered implementation lists.
struct ImplementationInfo {
  std::string_view name;       ///< "cpu.avx2.paged_attention"
  std::string_view operation;  ///< "paged_attention"
  Backend backend{};
  std::string_view accepts;         ///< dtypes, head dims and what it declines, in a line
  bool available = false;           ///< whether this machine can run it
  std::string unavailable_because;  ///< "needs avx512f"; empty when available
};

/// Every implementation in the build, in the order in which planning asks them, operation by operation.
std::vector<ImplementationInfo> implementations();

struct DeviceInfo {
  Device device{};
  std::string name;                     ///< "AMD EPYC 9B45"
  std::vector<std::string> features{};  ///< instruction sets that kernels exist for: "avx2", "avx512", ...
  int cores = 0;                        ///< CPU: hardware threads this process may use; GPU: multiprocessors
};

std::vector<DeviceInfo> devices();

/// "major.minor.patch"
std::string_view version();

}  // namespace fovea
