// SPDX-License-Identifier: Apache-2.0
/// Hostile memory on a GPU: each storage of a case has a copy there, red zones included, which goes over before a run and comes back
/// after it. So the host judges a device's results, and the memory around them, just as it judges the CPU's.
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

  /// Both wait for the device. The tensors are those given first, or others whose storages are as large, one by one.
  void upload(const std::vector<Named>& from) const;
  void download(const std::vector<Named>& to) const;

  /// What the device knows a host address as; null stays null. Throws for an address in none of the tensors.
  void* translate(const void* host) const;

 private:
  struct Copy {
    std::shared_ptr<Storage> host;
    void* base;
  };
  Device device_;
  std::vector<Copy> copies_{};
};

/// Arguments whose pointers are the device's. Pointers into itself are why it cannot be copied.
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

}  // namespace fovea::check
