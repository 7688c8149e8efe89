// SPDX-License-Identifier: Apache-2.0
/// The calls of a GPU's runtime that tests and benchmarks need. Failures throw, except those of kernels. A build without a GPU backend has
/// no device.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string_view>

#include "fovea/device.hpp"
#include "fovea/result.hpp"

namespace fovea::check {

/// The device on which an implementation runs: the first of its backend.
Device device_of(std::string_view implementation);

/// Whether tensors must be copied to run there. The processor and emulated devices use the host's memory.
bool has_own_memory(Device device);

void* device_allocate(Device device, std::size_t bytes);
void device_free(Device device, void* memory);
/// While it lives, memory is allocated with nothing mapped before it or behind it.
class IsolatedMemory {
 public:
  IsolatedMemory();
  ~IsolatedMemory();
  IsolatedMemory(const IsolatedMemory&) = delete;
  IsolatedMemory& operator=(const IsolatedMemory&) = delete;
};

void copy_to_device(Device device, void* to, std::span<const std::byte> from);
void copy_from_device(Device device, std::span<std::byte> to, const void* from);

/// Fills with NaN what the next kernel finds in the device's shared memory.
void poison_unwritten_memory(Device device);

/// Seconds that a copy inside the device's memory takes: the median of twenty.
double device_copy_seconds(Device device, std::size_t bytes);

/// Waits for all work on the device, and reports the failure of a kernel.
Result<void> synchronize(Device device);

/// A stream that does not wait for the default one, nor the default one for it.
class SideStream {
 public:
  explicit SideStream(Device device);
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;
  Stream get() const { return stream_; }

 private:
  Device device_;
  Stream stream_{};
};

/// The launches of a call on a stream, recorded without running them, to be run any number of times.
class Graph {
 public:
  Graph(Device device, Stream stream, const std::function<Result<void>()>& call);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch() const;
  /// Seconds that one of `count` launches takes, by the device's clock.
  double seconds(int count) const;

 private:
  Device device_;
  Stream stream_;
  [[maybe_unused]] void* executable_ = nullptr;  // a build without devices has no use for it
};

}  // namespace fovea::check
