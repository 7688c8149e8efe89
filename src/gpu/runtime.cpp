// SPDX-License-Identifier: Apache-2.0
#include "gpu/runtime.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "gpu/common/find_device.hpp"
#include "gpu/devices.hpp"
#include "op/common/checks.hpp"

namespace fovea::gpu {
namespace {

/// Devices that may be described, a usual one of each compute capability (T4, A100, A40, L40S, H200, B200, RTX PRO 6000).
constexpr std::array kDescribedDevices{
    DeviceProperties{75, 40, 64 << 10, 64 << 10, 4 << 20},      DeviceProperties{80, 108, 163 << 10, 164 << 10, 40 << 20},
    DeviceProperties{86, 84, 99 << 10, 100 << 10, 6 << 20},     DeviceProperties{89, 142, 99 << 10, 100 << 10, 96 << 20},
    DeviceProperties{90, 132, 227 << 10, 228 << 10, 50 << 20},  DeviceProperties{100, 148, 227 << 10, 228 << 10, 126 << 20},
    DeviceProperties{120, 188, 99 << 10, 100 << 10, 128 << 20},
};

struct DeviceTable {
  std::vector<DeviceProperties> devices{};
  std::string why_none{};  ///< "no CUDA device (cudaErrorInsufficientDriver)"
};

int attribute(cudaDeviceAttr which, int ordinal) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, which, ordinal) == cudaSuccess ? value : 0;
}

DeviceTable look_up_devices() {
  DeviceTable table;
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (!CudaStatus("cudaGetDeviceCount", counted)) {
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
}

/// The devices of this process, looked up once.
const DeviceTable& device_table() {
  static const DeviceTable kTable = look_up_devices();
  return kTable;
}

/// "9.0"
std::string capability_text(int capability) { return std::to_string(capability / 10) + "." + std::to_string(capability % 10); }

/// "9.0", "7.5 to 8.9", "8.0 or later"
std::string capability_range(int lowest, int highest) {
  if (lowest == highest) return capability_text(lowest);
  return capability_text(lowest) + (highest == kAnyLater ? " or later" : " to " + capability_text(highest));
}

}  // namespace

CudaStatus::CudaStatus(const char* action, cudaError_t status) : action_(action), status_(status) {
  if (status != cudaSuccess) static_cast<void>(cudaGetLastError());
}

CudaStatus::operator Result<void>() const { return *this ? Result<void>() : Result<void>(error()); }

Error CudaStatus::error() const {
  return {ErrorCode::device_error,
          std::string(action_).append(": ").append(cudaGetErrorName(status_)).append(", ") + cudaGetErrorString(status_)};
}

const DeviceProperties* properties(Device device) { return find_device(device, kDescribedDevices, device_table().devices); }

std::string why_unavailable(int lowest, int highest) {
  const DeviceTable& table = device_table();
  if (table.devices.empty()) return table.why_none;
  const auto fits = [&](const DeviceProperties& device) { return device.capability >= lowest && device.capability <= highest; };
  if (std::any_of(table.devices.begin(), table.devices.end(), fits)) return {};
  return "needs a CUDA device of compute capability " + capability_range(lowest, highest);
}

std::optional<Error> decline_device(Device device, int lowest, int highest) {
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

ScopedDevice::~ScopedDevice() {
  if (switched_) static_cast<void>(cudaSetDevice(previous_));
}

CudaStatus ScopedDevice::make_current(int ordinal) {
  thread_local bool has_context = false;
  const CudaStatus asked("cudaGetDevice", cudaGetDevice(&previous_));
  if (!asked || (previous_ == ordinal && has_context)) return asked;
  const CudaStatus set("cudaSetDevice", cudaSetDevice(ordinal));
  has_context = static_cast<bool>(set);
  switched_ = has_context && previous_ != ordinal;
  return set;
}

CudaStatus allow_shared_bytes(const void* kernel, int ordinal, std::size_t bytes, std::uint64_t& done) {
  const std::atomic_ref devices(done);
  const std::uint64_t bit = std::uint64_t{1} << (ordinal % 64);
  if (ordinal < 64 && (devices.load(std::memory_order_acquire) & bit) != 0) return {};
  const ScopedDevice device(ordinal);
  if (!device.status()) return device.status();
  const CudaStatus set("cudaFuncSetAttribute",
                       cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  if (set) devices.fetch_or(bit, std::memory_order_release);
  return set;
}

int target_on(const void* kernel, int ordinal) {
  const ScopedDevice device(ordinal);
  cudaFuncAttributes attributes{};
  const CudaStatus known("cudaFuncGetAttributes", cudaFuncGetAttributes(&attributes, kernel));
  return device.status() && known ? attributes.ptxVersion : 0;
}

CudaStatus launch(const void* kernel, const LaunchShape& shape, Stream stream, void** params) {
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
  return {"kernel launch", cudaLaunchKernelExC(&config, kernel, params)};
}

void append_devices(std::vector<DeviceInfo>& all) {
  const auto& table = device_table().devices;
  for (int ordinal = 0; ordinal < static_cast<int>(table.size()); ++ordinal) {
    const DeviceProperties& device = table[static_cast<std::size_t>(ordinal)];
    cudaDeviceProp described{};
    const CudaStatus named("cudaGetDeviceProperties", cudaGetDeviceProperties(&described, ordinal));
    all.push_back({.device = {Backend::cuda, ordinal},
                   .name = named ? described.name : "CUDA device",
                   .features = {"sm" + std::to_string(device.capability)},
                   .cores = device.multiprocessors});
  }
}

}  // namespace fovea::gpu
