// SPDX-License-Identifier: Apache-2.0
/// The parts of the CUDA runtime that plans need: devices, and launches. Nothing here waits for a device. A machine without a device or
/// driver gets answers, not failures.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "fovea/device.hpp"
#include "fovea/result.hpp"
#include "gpu/launch.hpp"

namespace fovea::gpu {

inline constexpr int kAnyLater = 9999;  ///< the highest compute capability of code that the driver can compile for later devices

/// Empty if a device of this machine has a compute capability from `lowest` to `highest`.
std::string why_unavailable(int lowest, int highest);

/// The same for the `unavailable` of an entry.
template <int kLowest, int kHighest>
std::string_view unavailable() {
  static const std::string kReason = why_unavailable(kLowest, kHighest);
  return kReason;
}

/// Why an entry for compute capabilities `lowest` to `highest` declines `device`, or nothing.
std::optional<Error> decline_device(Device device, int lowest, int highest);

/// Makes a device the current one of the calling thread, and restores the previous one. The thread also has the device's context then,
/// which functions of the driver need. cudaGetDevice names a device for a thread without one, too.
class ScopedDevice {
 public:
  explicit ScopedDevice(int ordinal) : status_(make_current(ordinal)) {}
  ~ScopedDevice();
  ScopedDevice(const ScopedDevice&) = delete;
  ScopedDevice& operator=(const ScopedDevice&) = delete;

  const CudaStatus& status() const { return status_; }

 private:
  CudaStatus make_current(int ordinal);

  int previous_ = 0;
  bool switched_ = false;
  CudaStatus status_;
};

}  // namespace fovea::gpu
