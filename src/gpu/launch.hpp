// SPDX-License-Identifier: Apache-2.0
/// The part of the CUDA runtime that a kernel's own source needs. Every instance of a kernel compiles this header, so it includes
/// no strings and no containers.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "fovea/device.hpp"

namespace fovea {

struct Error;
template <class T>
class Result;
template <>
class Result<void>;

namespace gpu {

/// The runtime's answer to a call. It converts to the result that a plan returns.
class [[nodiscard]] CudaStatus {
 public:
  CudaStatus() = default;
  /// Also removes a failure from the runtime. Otherwise the next check of other code would find it. `action` is a literal.
  CudaStatus(const char* action, cudaError_t status);

  explicit operator bool() const { return status_ == cudaSuccess; }
  operator Result<void>() const;
  /// The error of a failure: "kernel launch: cudaErrorInvalidValue, invalid argument".
  Error error() const;

 private:
  const char* action_ = "";
  cudaError_t status_ = cudaSuccess;
};

inline cudaStream_t native(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

struct DeviceProperties {
  int capability = 0;  ///< 90 is compute capability 9.0
  int multiprocessors = 0;
  int shared_bytes_per_block = 0;  ///< most shared memory that a kernel may use
  int shared_bytes_per_multiprocessor = 0;
  int l2_bytes = 0;
};

/// A device of this machine, or one that is described. Null if there is no such device.
const DeviceProperties* properties(Device device);
inline const DeviceProperties* properties(int ordinal) { return properties({Backend::cuda, ordinal, 0}); }

struct LaunchShape {
  dim3 grid{}, block{};
  std::size_t shared_bytes = 0;
  dim3 cluster{1, 1, 1};  ///< blocks
  /// Programmatic dependent launch: the kernel may start while the one before it in the stream still runs. The kernel itself waits for
  /// what it reads, and is not complete before that one.
  bool programmatic = false;
};

/// Lets a kernel have more than 48 KiB of dynamic shared memory. `done` has a bit for each device where the kernel may have it already.
CudaStatus allow_shared_bytes(const void* kernel, int ordinal, std::size_t bytes, std::uint64_t& done);

/// The same. `bytes` is the kernel's own constant, the same in every call.
template <auto kKernel>
CudaStatus allow_shared_bytes(int ordinal, std::size_t bytes) {
  static std::uint64_t done = 0;
  return allow_shared_bytes(reinterpret_cast<const void*>(kKernel), ordinal, bytes, done);
}

/// Target of the code of a kernel that a device runs: 89 is compute capability 8.9, also where a later device compiles it from
/// PTX. 0 without such a device.
int target_on(const void* kernel, int ordinal);

/// Launches on the current device: `params` has the address of each of the kernel's parameters. No other function launches.
CudaStatus launch(const void* kernel, const LaunchShape& shape, Stream stream, void** params);

template <class... Params>
CudaStatus launch(void (*kernel)(Params...), const LaunchShape& shape, Stream stream, const std::type_identity_t<Params>&... params) {
  std::array<void*, sizeof...(Params)> pointers{const_cast<void*>(static_cast<const void*>(&params))...};
  return launch(reinterpret_cast<const void*>(kernel), shape, stream, pointers.data());
}

}  // namespace gpu
}  // namespace fovea
