// SPDX-License-Identifier: Apache-2.0
/// Hostile memory on a GPU. Each storage of a case has a copy there, red zones included. It is copied to the device before a run and back
/// after it. The host thus judges a device's results, and the memory around them, as it judges the CPU's.
#pragma once

#include <memory>
#include <vector>

#include "fovea/fovea.hpp"
#include "hostile_tensor.hpp"

namespace fovea::check {

/// A tensor of a case.
struct Named {
  std::string_view name;
  HostileTensor tensor;
};

class DeviceMemory {
 public:
  DeviceMemory(const std::vector<Named>& tensors, Device device);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// Both wait for the device. The tensors are those of the constructor, or others with storages of the same sizes, in the same order.
  void upload(const std::vector<Named>& from) const;
  void download(const std::vector<Named>& to) const;

  /// The device address of a host address. Null stays null. Throws for an address in none of the tensors.
  void* translate(const void* host) const;

 private:
  struct Copy {
    std::shared_ptr<Storage> host;
    void* base;
  };
  Device device_;
  std::vector<Copy> copies_{};
};

/// Arguments with device pointers. They point into the object itself, so it cannot be copied.
template <class Args>
struct DeviceArgs {
  DeviceArgs(const Args& host, const DeviceMemory& memory);
  DeviceArgs(const DeviceArgs&) = delete;
  DeviceArgs& operator=(const DeviceArgs&) = delete;

  Args args;
  std::vector<MergeStatesArgs::Part> parts{};
};

extern template struct DeviceArgs<AttentionArgs>;
extern template struct DeviceArgs<AttentionBackwardArgs>;
extern template struct DeviceArgs<PagedAttentionArgs>;
extern template struct DeviceArgs<PagedCacheAppendArgs>;
extern template struct DeviceArgs<MergeStatesArgs>;
extern template struct DeviceArgs<LatentAttentionArgs>;
extern template struct DeviceArgs<SparseLatentAttentionArgs>;
extern template struct DeviceArgs<QuantizeLatentCacheArgs>;
extern template struct DeviceArgs<DequantizeLatentCacheArgs>;
extern template struct DeviceArgs<IndexLogitsArgs>;
extern template struct DeviceArgs<TopkRowsArgs>;

}  // namespace fovea::check
