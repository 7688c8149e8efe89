// SPDX-License-Identifier: Apache-2.0
#include "device.hpp"

#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

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

struct Call {
  std::optional<Device> device{};
  bool planned_only = false;
};

Call& current_call() {
  thread_local Call call;
  return call;
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

/// torch's library for GPUs in this process, because the extension must also load where torch has none. ROCm's build of torch has another,
/// and calls its devices cuda all the same.
struct TorchGpu {
  void* library = nullptr;
  Backend backend = Backend::cuda;
};

const TorchGpu& torch_gpu() {
  static const TorchGpu kFound = [] {
    if (void* hip = dlopen("libtorch_hip.so", RTLD_LAZY | RTLD_NOLOAD)) return TorchGpu{hip, Backend::hip};
    return TorchGpu{dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD), Backend::cuda};
  }();
  return kFound;
}

/// The symbol of the library under this name, which is the same in both builds; null if there is none.
template <class Function>
Function* find_in_torch(const char* name) {
  void* library = torch_gpu().library;
  return library == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library, name));
}

/// torch's allocator without tensors around its memory, which take as long as a launch. It serves the current device.
struct PlainMemory {
  using Take = AOTITorchError(std::uint64_t bytes, void** memory);
  using Give = AOTITorchError(void* memory);
  Take* take = find_in_torch<Take>("aoti_torch_cuda_caching_allocator_raw_alloc");
  Give* give = find_in_torch<Give>("aoti_torch_cuda_caching_allocator_raw_delete");
};

/// Nothing where the user wants no caching, which this way into the allocator does not look at.
const PlainMemory& plain_memory() {
  static const PlainMemory kFound =
      std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") == nullptr ? PlainMemory{} : PlainMemory{nullptr, nullptr};
  return kFound;
}

/// Null where torch has none, or another device is the current one. Where memory is short, a tensor of these bytes says so.
void* plain_memory_of(Device device, std::size_t bytes) {
  const PlainMemory& allocator = plain_memory();
  std::int32_t current = -1;
  if (allocator.take == nullptr || allocator.give == nullptr) return nullptr;
  if (aoti_torch_get_current_device_index(&current) != AOTI_TORCH_SUCCESS || current != device.ordinal) return nullptr;
  void* memory = nullptr;
  return allocator.take(bytes, &memory) == AOTI_TORCH_SUCCESS ? memory : nullptr;
}

}  // namespace

Backend gpu_backend() { return torch_gpu().backend; }

void begin_call() { current_call() = {}; }

void begin_planning(Device device) { current_call() = {.device = device, .planned_only = true}; }

void check_device(const Tensor& tensor, const char* name) {
  if (current_call().planned_only && tensor.device().type() == torch::headeronly::DeviceType::Meta) return;
  if (!tensor.is_cpu() && !tensor.is_cuda()) raise_invalid(field(name, "device"), "another device", "cpu or cuda");
  const Device device = tensor.is_cuda() ? Device{gpu_backend(), tensor.get_device_index()} : Device{};
  std::optional<Device>& known = current_call().device;
  if (!known) known = device;
  if (known->backend == device.backend && known->ordinal == device.ordinal) return;
  raise_invalid(field(name, "device"), text(device), text(*known) + ", as the tensors before it");
}

void set_call_device(Device device) { current_call().device = device; }

Device call_device() { return current_call().device.value_or(Device{}); }

Stream call_stream() {
  const Device device = call_device();
  if (device.backend == Backend::cpu) return {};
  using CurrentStream = AOTITorchError(std::int32_t device_index, void** stream);
  static CurrentStream* const kCurrentStream = find_in_torch<CurrentStream>("aoti_torch_get_current_cuda_stream");
  if (kCurrentStream == nullptr) throw std::runtime_error("torch's GPU library does not say its current stream; want torch 2.11 or newer");
  Stream stream;
  TORCH_ERROR_CODE_CHECK(kCurrentStream(device.ordinal, &stream.handle));
  return stream;
}

Scratch::Scratch(std::size_t bytes) {
  const Device device = call_device();
  if (device.backend == Backend::cpu) {
    workspace_ = cpu_memory(bytes);
  } else if (bytes != 0) {
    void* memory = plain_memory_of(device, bytes);
    is_plain_ = memory != nullptr;
    if (!is_plain_) memory = owner_.emplace(new_bytes(static_cast<std::int64_t>(bytes))).data_ptr();
    workspace_ = {memory, bytes};
  }
}

Scratch::~Scratch() {
  if (is_plain_) static_cast<void>(plain_memory().give(workspace_.data));
}

Tensor new_bytes(std::int64_t bytes) {
  const Device device = call_device();
  const std::int32_t type = device.backend == Backend::cpu ? aoti_torch_device_type_cpu() : aoti_torch_device_type_cuda();
  const std::int64_t stride = 1;
  AtenTensorHandle made = nullptr;  // torch::stable::empty looks aten::empty up by its name, call by call
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, &bytes, &stride, aoti_torch_dtype_uint8(), type, device.ordinal, &made));
  return Tensor(made);
}

Workspace schedule_memory(const Tensor& schedule) {
  check_memory(schedule, "schedule");
  if (!holds_bytes(schedule)) raise_invalid("schedule.dtype", dtype_text(schedule), "uint8");
  if (!schedule.is_contiguous()) raise_invalid("schedule.strides", "gaps", "none (contiguous)");
  return {schedule.data_ptr(), static_cast<std::size_t>(schedule.numel())};
}

}  // namespace fovea::binding
