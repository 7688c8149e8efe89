// SPDX-License-Identifier: Apache-2.0
/// The parts of the CUDA runtime that kernels need: failures as errors, devices, launches. Nothing here waits for a device. A machine
/// without a device or driver gets answers, not failures.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "fovea/device.hpp"
#include "fovea/result.hpp"
#include "op/common/checks.hpp"

namespace fovea::gpu {

inline Error device_error(std::string_view action, cudaError_t status) {
  return {ErrorCode::device_error,
          std::string(action).append(": ").append(cudaGetErrorName(status)).append(", ") + cudaGetErrorString(status)};
}

/// Also removes the failure from the runtime. Otherwise the next check of other code would find it.
inline Result<void> check(std::string_view action, cudaError_t status) {
  if (status == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());
  return device_error(action, status);
}

// ---- devices ----------------------------------------------------------------------------------------------------------------

struct DeviceProperties {
  int capability = 0;  ///< 90 is compute capability 9.0
  int multiprocessors = 0;
  int shared_bytes_per_block = 0;  ///< most shared memory that a kernel may use
  int shared_bytes_per_multiprocessor = 0;
  int l2_bytes = 0;
};

struct DeviceTable {
  std::vector<DeviceProperties> devices{};
  std::string why_none{};  ///< "no CUDA device (cudaErrorInsufficientDriver)"
};

inline int attribute(cudaDeviceAttr which, int ordinal) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, which, ordinal) == cudaSuccess ? value : 0;
}

/// The devices of this process, looked up once.
inline const DeviceTable& device_table() {
  static const DeviceTable kTable = [] {
    DeviceTable table;
    int count = 0;
    const cudaError_t counted = cudaGetDeviceCount(&count);
    if (!check("cudaGetDeviceCount", counted)) {
      table.why_none = std::string("no CUDA device (").append(cudaGetErrorName(counted)).append(")");
      return table;
    }
    for (int ordinal = 0; ordinal < count; ++ordinal) {
      table.devices.push_back(
          {.capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor, ordinal) + attribute(cudaDevAttrComputeCapabilityMinor, ordinal),
           .multiprocessors = attribute(cudaDevAttrMultiProcessorCount, ordinal),
           .shared_bytes_per_block = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal),
           .shared_bytes_per_multiprocessor = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, ordinal),
           .l2_bytes = attribute(cudaDevAttrL2CacheSize, ordinal)});
    }
    if (count == 0) table.why_none = "no CUDA device";
    return table;
  }();
  return kTable;
}

/// Null if there is no such device.
inline const DeviceProperties* properties(int ordinal) {
  const auto& devices = device_table().devices;
  return ordinal >= 0 && static_cast<std::size_t>(ordinal) < devices.size() ? &devices[static_cast<std::size_t>(ordinal)] : nullptr;
}

/// Devices that may be described, a usual one of each compute capability (T4, A100, A40, L40S, H200, B200, RTX PRO 6000).
inline constexpr std::array kDescribedDevices{
    DeviceProperties{75, 40, 64 << 10, 64 << 10, 4 << 20},      DeviceProperties{80, 108, 163 << 10, 164 << 10, 40 << 20},
    DeviceProperties{86, 84, 99 << 10, 100 << 10, 6 << 20},     DeviceProperties{89, 142, 99 << 10, 100 << 10, 96 << 20},
    DeviceProperties{90, 132, 227 << 10, 228 << 10, 50 << 20},  DeviceProperties{100, 148, 227 << 10, 228 << 10, 126 << 20},
    DeviceProperties{120, 188, 99 << 10, 100 << 10, 128 << 20},
};

/// A device of this machine, or one that is described. Null if there is no such device.
inline const DeviceProperties* properties(Device device) {
  if (device.capability == 0) return properties(device.ordinal);
  const auto is_it = [&](const DeviceProperties& candidate) { return candidate.capability == device.capability; };
  const auto found = std::find_if(kDescribedDevices.begin(), kDescribedDevices.end(), is_it);
  return found == kDescribedDevices.end() ? nullptr : &*found;
}

inline constexpr int kAnyLater = 9999;  ///< the highest compute capability of code that the driver can compile for later devices

/// "9.0"
inline std::string capability_text(int capability) { return std::to_string(capability / 10) + "." + std::to_string(capability % 10); }

/// "9.0", "7.5 to 8.9", "8.0 or later"
inline std::string capability_range(int lowest, int highest) {
  if (lowest == highest) return capability_text(lowest);
  return capability_text(lowest) + (highest == kAnyLater ? " or later" : " to " + capability_text(highest));
}

/// For the `unavailable` of an entry. Empty if a device of this machine has a compute capability from kLowest to kHighest.
template <int kLowest, int kHighest>
std::string_view unavailable() {
  static const std::string kReason = [] {
    const DeviceTable& table = device_table();
    if (table.devices.empty()) return table.why_none;
    const auto fits = [](const DeviceProperties& device) { return device.capability >= kLowest && device.capability <= kHighest; };
    if (std::any_of(table.devices.begin(), table.devices.end(), fits)) return std::string();
    return "needs a CUDA device of compute capability " + capability_range(kLowest, kHighest);
  }();
  return kReason;
}

/// Why an entry for compute capabilities `lowest` to `highest` declines `device`, or nothing.
inline std::optional<Error> decline_device(Device device, int lowest, int highest) {
  const DeviceProperties* found = properties(device);
  if (found == nullptr && device.capability != 0) {
    return detail::declined("device.capability", device.capability, "75, 80, 86, 89, 90, 100 or 120");
  }
  if (found == nullptr) {
    return detail::declined("device.ordinal", device.ordinal, "0 to " + std::to_string(device_table().devices.size() - 1));
  }
  if (found->capability >= lowest && found->capability <= highest) return std::nullopt;
  return detail::declined("device (compute capability)", capability_text(found->capability), capability_range(lowest, highest));
}

/// Makes a device the current one of the calling thread, and restores the previous one. The thread also has the device's context then,
/// which functions of the driver need. cudaGetDevice names a device for a thread without one, too.
class ScopedDevice {
 public:
  explicit ScopedDevice(int ordinal) : status_(make_current(ordinal)) {}
  ~ScopedDevice() {
    if (switched_) static_cast<void>(cudaSetDevice(previous_));
  }
  ScopedDevice(const ScopedDevice&) = delete;
  ScopedDevice& operator=(const ScopedDevice&) = delete;

  const Result<void>& status() const { return status_; }

 private:
  Result<void> make_current(int ordinal) {
    thread_local bool has_context = false;
    const Result<void> asked = check("cudaGetDevice", cudaGetDevice(&previous_));
    if (!asked || (previous_ == ordinal && has_context)) return asked;
    const Result<void> set = check("cudaSetDevice", cudaSetDevice(ordinal));
    has_context = set.has_value();
    switched_ = has_context && previous_ != ordinal;
    return set;
  }

  int previous_ = 0;
  bool switched_ = false;
  Result<void> status_;
};

// ---- launches ---------------------------------------------------------------------------------------------------------------

inline cudaStream_t native(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

struct LaunchShape {
  dim3 grid{}, block{};
  std::size_t shared_bytes = 0;
  dim3 cluster{1, 1, 1};  ///< blocks
  /// Programmatic dependent launch: the kernel may start while the one before it in the stream still runs. The kernel itself waits for
  /// what it reads, and is not complete before that one.
  bool programmatic = false;
};

/// Lets a kernel have more than 48 KiB of dynamic shared memory. The attribute is set once for each device. `bytes` is the kernel's own
/// constant, the same in every call.
template <auto kKernel>
Result<void> allow_shared_bytes(int ordinal, std::size_t bytes) {
  static std::atomic<std::uint64_t> done{0};  // a bit for each device
  const std::uint64_t bit = std::uint64_t{1} << (ordinal % 64);
  if (ordinal < 64 && (done.load(std::memory_order_acquire) & bit) != 0) return {};
  const ScopedDevice device(ordinal);
  if (!device.status()) return device.status();
  const Result<void> set = check(
      "cudaFuncSetAttribute",
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kKernel), cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  if (set) done.fetch_or(bit, std::memory_order_release);
  return set;
}

/// Target of the code of a kernel that a device runs: 89 is compute capability 8.9, also where a later device compiles it from
/// PTX. 0 without such a device.
template <auto kKernel>
int target_on(int ordinal) {
  const ScopedDevice device(ordinal);
  cudaFuncAttributes attributes{};
  const Result<void> known = check("cudaFuncGetAttributes", cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kKernel)));
  return device.status() && known ? attributes.ptxVersion : 0;
}

/// Launches on the current device. No other function launches.
template <class... Params>
Result<void> launch(void (*kernel)(Params...), const LaunchShape& shape, Stream stream, const std::type_identity_t<Params>&... params) {
  std::array<cudaLaunchAttribute, 2> attributes{};
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = native(stream);
  config.attrs = attributes.data();
  if (shape.cluster.x * shape.cluster.y * shape.cluster.z > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {shape.cluster.x, shape.cluster.y, shape.cluster.z};
  }
  if (shape.programmatic) {
    cudaLaunchAttribute& programmatic = attributes[config.numAttrs++];
    programmatic.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    programmatic.val.programmaticStreamSerializationAllowed = 1;
  }
  std::array<void*, sizeof...(Params)> pointers{const_cast<void*>(static_cast<const void*>(&params))...};
  return check("kernel launch", cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), pointers.data()));
}

}  // namespace fovea::gpu
