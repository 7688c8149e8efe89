// SPDX-License-Identifier: Apache-2.0
/// The parts of the HIP runtime that kernels need, under the names of gpu/runtime.hpp. The runtime is found when it is first needed, so
/// one library serves machines with and without it, and building it needs no HIP header.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/device.hpp"
#include "fovea/info.hpp"
#include "fovea/result.hpp"

namespace fovea::gpu::hip {

using Status = int;  // hipError_t; 0 is success
using ModuleHandle = void*;
using FunctionHandle = void*;

/// The functions of libamdhip64.so that the library calls, with the types of hip/hip_runtime_api.h.
struct Runtime {
  Status (*get_device_count)(int* count) = nullptr;
  Status (*get_attribute)(int* value, int attribute, int ordinal) = nullptr;
  Status (*get_name)(char* name, int bytes, int ordinal) = nullptr;
  Status (*get_device)(int* ordinal) = nullptr;
  Status (*set_device)(int ordinal) = nullptr;
  Status (*get_last_error)() = nullptr;
  const char* (*name_of_error)(Status status) = nullptr;
  Status (*load_module)(ModuleHandle* module, const void* image) = nullptr;
  Status (*get_function)(FunctionHandle* function, ModuleHandle module, const char* name) = nullptr;
  Status (*launch)(FunctionHandle function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                   unsigned block_z, unsigned shared_bytes, void* stream, void** params, void** extra) = nullptr;
};

// Values of hipDeviceAttribute_t, the same in HIP 5, 6 and 7. tests/hip/runtime_values.cpp compares them with a HIP header.
inline constexpr int kAttributeMajor = 23, kAttributeMinor = 61, kAttributeMultiprocessors = 63;

/// The runtime of this machine, or why there is none. A program for emulation links another definition.
struct FoundRuntime {
  const Runtime* functions = nullptr;
  std::string why_none{};  ///< "no HIP runtime (libamdhip64.so: cannot open shared object file)"
};
const FoundRuntime& found_runtime();

/// Also removes the failure from the runtime.
Result<void> check(std::string_view action, Status status);

// ---- devices ----------------------------------------------------------------------------------------------------------------

struct DeviceProperties {
  int capability = 0;  ///< 90 is gfx90a, 94 gfx942
  int compute_units = 0;
};

struct DeviceTable {
  std::vector<DeviceProperties> devices{};
  std::string why_none{};
};
/// The devices of this process, looked up once.
const DeviceTable& device_table();

/// The targets of the kernels, and a usual device of each (a die of an MI250X, an MI300X).
inline constexpr std::array kDescribedDevices{DeviceProperties{90, 110}, DeviceProperties{94, 304}};
/// "gfx90a"; empty for another device.
constexpr std::string_view target_of(int capability) { return capability == 90 ? "gfx90a" : capability == 94 ? "gfx942" : ""; }

/// A device of this machine, or one that is described. Null if there is no such device.
const DeviceProperties* properties(Device device);

/// For the `unavailable` of an entry. Empty if a device of this machine runs its kernels.
std::string_view unavailable();

/// Why the kernels do not run on `device`, or nothing.
std::optional<Error> decline_device(Device device);

/// Makes a device the current one of the calling thread, and restores the previous one.
class ScopedDevice {
 public:
  explicit ScopedDevice(int ordinal) : status_(make_current(ordinal)) {}
  ~ScopedDevice();
  ScopedDevice(const ScopedDevice&) = delete;
  ScopedDevice& operator=(const ScopedDevice&) = delete;

  const Result<void>& status() const { return status_; }

 private:
  Result<void> make_current(int ordinal);

  int previous_ = 0;
  bool switched_ = false;
  Result<void> status_;
};

// ---- kernels ----------------------------------------------------------------------------------------------------------------

/// The compiled kernels of one source for one target; the build makes the table. Without clang-19 it is empty.
struct CodeObject {
  std::string_view target{}, source{};  ///< "gfx90a", "128_decode"
  const unsigned char* image = nullptr;
};
std::span<const CodeObject> code_objects();

/// The kernel `name` of `source` for a device, or why it cannot be loaded. It is loaded once and kept. Not for a described device.
Result<FunctionHandle> find_kernel(int ordinal, std::string_view source, const std::string& name);

/// Most workgroups in the first dimension of a grid, for 256 threads each: HIP counts threads in 32 bits.
inline constexpr std::int64_t kMostWorkgroups = (std::int64_t{1} << 24) - 1;

struct LaunchShape {
  unsigned grid[3]{1, 1, 1};
  unsigned threads = 64;
};
/// Launches on the current device. No other function launches.
Result<void> launch(FunctionHandle kernel, const LaunchShape& shape, Stream stream, const void* params);

/// The HIP devices of this machine. None without a runtime.
void append_devices(std::vector<DeviceInfo>& all);

}  // namespace fovea::gpu::hip
