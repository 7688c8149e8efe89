// SPDX-License-Identifier: Apache-2.0
#include "device.hpp"

#include <dlfcn.h>
#include <torch/csrc/stable/ops.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <string>

#include "arguments.hpp"

namespace fovea::binding {
namespace {

struct FreeAligned {
  void operator()(void* memory) const { std::free(memory); }
};

std::optional<Device>& known_device() {
  thread_local std::optional<Device> device;
  return device;
}

std::string text(Device device) {
  std::string name(name_of(device.backend));
  return device.backend == Backend::cpu ? name : name.append(":").append(std::to_string(device.ordinal));
}

Workspace cpu_memory(std::size_t bytes) {
  thread_local std::unique_ptr<void, FreeAligned> memory;
  thread_local std::size_t capacity = 0;
  if (bytes > capacity) {
    const std::size_t rounded = (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
    capacity = 0;
    memory.reset();
    memory.reset(std::aligned_alloc(kWorkspaceAlignment, rounded));
    if (memory == nullptr) throw std::bad_alloc();
    capacity = rounded;
  }
  return {memory.get(), capacity};
}

/// Found in the process, because the extension must also load where torch has no CUDA.
using CurrentStream = AOTITorchError (*)(std::int32_t device_index, void** stream);

CurrentStream find_current_stream() {
  void* library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  return library == nullptr ? nullptr : reinterpret_cast<CurrentStream>(dlsym(library, "aoti_torch_get_current_cuda_stream"));
}

}  // namespace

void begin_call() { known_device().reset(); }

void check_device(const Tensor& tensor, const char* name) {
  if (!tensor.is_cpu() && !tensor.is_cuda()) raise_invalid(field(name, "device"), "another device", "cpu or cuda");
  const Device device = tensor.is_cuda() ? Device{Backend::cuda, tensor.get_device_index()} : Device{};
  std::optional<Device>& known = known_device();
  if (!known) known = device;
  if (known->backend == device.backend && known->ordinal == device.ordinal) return;
  raise_invalid(field(name, "device"), text(device), text(*known) + ", as the tensors before it");
}

Device call_device() { return known_device().value_or(Device{}); }

Stream call_stream() {
  const Device device = call_device();
  if (device.backend != Backend::cuda) return {};
  static const CurrentStream kCurrentStream = find_current_stream();
  if (kCurrentStream == nullptr) throw std::runtime_error("torch's CUDA library does not say its current stream; want torch 2.11 or newer");
  Stream stream;
  STABLE_TORCH_ERROR_CODE_CHECK(kCurrentStream(device.ordinal, &stream.handle));
  return stream;
}

Scratch scratch(std::size_t bytes) {
  const Device device = call_device();
  if (device.backend == Backend::cpu) return {.workspace = cpu_memory(bytes)};
  if (bytes == 0) return {};
  const std::array size{static_cast<std::int64_t>(bytes)};
  const torch::stable::Device place(torch::headeronly::DeviceType::CUDA, static_cast<torch::stable::DeviceIndex>(device.ordinal));
  Scratch memory{.owner = torch::stable::empty({size.data(), size.size()}, torch::headeronly::ScalarType::Byte, std::nullopt, place)};
  memory.workspace = {memory.owner->data_ptr(), bytes};
  return memory;
}

}  // namespace fovea::binding
