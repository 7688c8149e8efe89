// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "fovea/device.hpp"
#include "fovea/info.hpp"

namespace fovea::cli {

/// The best rates of this machine with some threads, measured now. Every rate is printed as a fraction of these.
struct Ceilings {
  int threads = 0;
  double read_bandwidth = 0;  ///< bytes/s out of memory
  double f32_peak = 0;        ///< FLOP/s of fused multiply-adds in the widest registers
  double bf16_peak = 0;       ///< FLOP/s of the fastest bf16 products; f32_peak where there is no such instruction
  std::string_view f32_instruction{}, bf16_instruction{};
};

/// The higher of each of the two.
Ceilings better(const Ceilings& a, const Ceilings& b);

/// Measures the ceilings of this machine, at every call: on a machine that others use too, they change from minute to minute.
class CeilingMeter {
 public:
  explicit CeilingMeter(int threads);
  Ceilings measure() const;

 private:
  double read_bandwidth(const std::vector<DeviceInfo>& all) const;

  int threads_;
  std::vector<std::unique_ptr<std::byte[]>> memory_{};  // bytes of one thread's range, far larger than the caches
};

/// Ceilings of a GPU. Copies run inside its memory, and reads and writes count. The caller measures the matrix product with a library.
Ceilings device_ceilings(Device device, double matrix_peak);

}  // namespace fovea::cli
