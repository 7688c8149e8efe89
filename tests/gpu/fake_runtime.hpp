// SPDX-License-Identifier: Apache-2.0
/// Simulated devices: the few functions of the CUDA runtime by which the library looks at devices and launches on them, in place of the
/// real ones. A launch is checked against the device's limits and noted; nothing runs. So the host's side of a call is tested on machines
/// without a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <vector>

namespace fovea::check {

struct FakeDevice {
  const char* name;
  int capability, multiprocessors, shared_bytes;
};

inline constexpr std::array<FakeDevice, 5> kFakeDevices{{{"of Hopper", 90, 132, 227 << 10},
                                                         {"of Ampere", 80, 108, 163 << 10},
                                                         {"of Turing", 75, 40, 64 << 10},
                                                         {"of Blackwell", 100, 148, 227 << 10},
                                                         {"of Ada", 89, 142, 99 << 10}}};

struct Launch {
  int device;
  const void* kernel;
  dim3 grid, block;
};

/// All launches since the last clear.
std::vector<Launch>& launches();

/// The result of every launch from now on. With cudaSuccess, launches within the limits succeed.
void set_launch_status(cudaError_t status);

}  // namespace fovea::check
