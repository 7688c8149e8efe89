// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "fovea/device.hpp"
#include "fovea/info.hpp"

namespace fovea::cli {

/// What this machine can do at best with some threads, measured here and now: every rate is printed as a fraction of these.
struct Ceilings {
  int threads = 0;
  double read_bandwidth = 0;  ///< bytes/s out of memory
  double f32_peak = 0;        ///< FLOP/s of fused multiply-adds in the widest registers
  double bf16_peak = 0;       ///< FLOP/s of the fastest bf16 products; f32_peak where there is no such instruction
  std::string_view f32_instruction{}, bf16_instruction{};
};

/// The higher of each.
Ceilings better(const Ceilings& a, const Ceilings& b);

/// Measures the ceilings of this machine, as often as asked: on a machine that others use too, they change from minute to minute.
class CeilingMeter {
 public:
  explicit CeilingMeter(int threads);
  Ceilings measure() const;

 private:
  double read_bandwidth(const std::vector<DeviceInfo>& all) const;

  int threads_;
  std::vector<std::unique_ptr<std::byte[]>> memory_{};  // a thread's part, far larger than the caches
};

/// Of a GPU: copies inside its memory, reads and writes counted; the matrix product comes from a library that the caller has asked.
Ceilings device_ceilings(Device device, double matrix_peak);

}  // namespace fovea::cli
