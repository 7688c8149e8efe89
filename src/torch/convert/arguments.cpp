// SPDX-License-Identifier: Apache-2.0
#include "arguments.hpp"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <string_view>

namespace fovea::binding {
namespace {

struct StorageUse {
  std::int64_t bytes, needed;
};

/// Bytes of the tensor's storage, and those up to the end of the tensor's last element.
StorageUse storage_of(const Tensor& tensor) {
  StorageUse use{};
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(tensor.get(), &use.bytes));
  std::int64_t last = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_offset(tensor.get(), &last));
  const auto shape = tensor.sizes(), strides = tensor.strides();
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] == 0) return use;
    last += (shape[axis] - 1) * strides[axis];
  }
  use.needed = (last + 1) * static_cast<std::int64_t>(tensor.element_size());
  return use;
}

std::atomic<int>& requested_threads() {
  static std::atomic<int> threads = 0;
  return threads;
}

/// Fovea's work on torch's own threads: a second pool beside it would keep the cores busy waiting.
void torch_parallel(int threads, void (*body)(void* context, int thread), void* context) {
  struct Call {
    void (*body)(void*, int);
    void* context;
  } call{body, context};
  const auto run_range = [](std::int64_t begin, std::int64_t end, void* data) {
    const Call& work = *static_cast<const Call*>(data);
    for (std::int64_t thread = begin; thread < end; ++thread) work.body(work.context, static_cast<int>(thread));
  };
  TORCH_ERROR_CODE_CHECK(torch_parallel_for(0, threads, 1, run_range, &call));
}

}  // namespace

std::vector<void*>& Arguments::current_addresses() {
  thread_local std::vector<void*> addresses;
  return addresses;
}

void* Arguments::address_of(const Tensor& tensor) noexcept {
  try {
    return tensor.data_ptr();
  } catch (...) {
    return nullptr;
  }
}

// Not take<std::string>(): in torch 2.11 to 2.13 it leaks the string.
std::string Arguments::text() {
  const auto handle = take<StringHandle>();
  const std::unique_ptr<StringOpaque, AOTITorchError (*)(StringHandle)> owner(handle, torch_delete_string);
  const char* characters = nullptr;
  std::size_t length = 0;
  TORCH_ERROR_CODE_CHECK(torch_string_c_str(handle, &characters));
  TORCH_ERROR_CODE_CHECK(torch_string_length(handle, &length));
  std::string text(characters, length);
  key_.add(text);
  return text;
}

void raise(const Error& error) {
  switch (error.code) {
    case ErrorCode::invalid_argument: throw std::runtime_error("invalid: " + to_string(error));
    case ErrorCode::unsupported: throw std::runtime_error("unsupported: " + to_string(error));
    case ErrorCode::out_of_workspace:
    case ErrorCode::device_error: break;
  }
  throw std::runtime_error(to_string(error));
}

void raise_invalid(const std::string& subject, const std::string& got, const std::string& want) {
  raise({ErrorCode::invalid_argument, subject + ": got " + got + ", want " + want});
}

std::string field(const char* name, std::string_view member) { return std::string(name).append(".").append(member); }

std::string shape_text(const Tensor& tensor) { return list_text(tensor.sizes()); }

std::int32_t torch_dtype_of(const Tensor& tensor) {
  std::int32_t dtype = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &dtype));
  return dtype;
}

std::string dtype_text(std::int32_t dtype) {
  using torch::stable::detail::from, torch::stable::detail::to;
  try {
    return torch::headeronly::toString(to<torch::headeronly::ScalarType>(from(dtype)));
  } catch (const std::runtime_error&) {
    return "one that extensions cannot name";
  }
}

std::string dtype_text(const Tensor& tensor) { return dtype_text(torch_dtype_of(tensor)); }

StableIValue text_result(std::string_view text) {
  using torch::headeronly::DeviceType, torch::headeronly::ScalarType;
  const std::array size{static_cast<std::int64_t>(text.size())};
  Tensor bytes = torch::stable::empty({size.data(), size.size()}, ScalarType::Byte, std::nullopt, torch::stable::Device(DeviceType::CPU));
  std::ranges::copy(text, static_cast<char*>(bytes.data_ptr()));
  return torch::stable::detail::from(bytes);
}

bool holds_bytes(const Tensor& tensor) { return torch_dtype_of(tensor) == aoti_torch_dtype_uint8(); }

bool fits_storage(const Tensor& tensor) {
  const StorageUse use = storage_of(tensor);
  return use.needed <= use.bytes;
}

void check_memory(const Tensor& tensor, const char* name) {
  check_device(tensor, name);
  if (tensor.device().type() == torch::headeronly::DeviceType::Meta) return;
  const StorageUse use = storage_of(tensor);
  if (use.needed <= use.bytes) return;
  raise_invalid(field(name, "storage"), std::to_string(use.bytes) + " bytes", "at least " + std::to_string(use.needed));
}

int follow_torch_threads() {
  std::uint32_t threads = 0;
  if (requested_threads() == 0 && torch_get_num_threads(&threads) == TORCH_SUCCESS) set_num_threads(static_cast<int>(threads));
  return num_threads();
}

std::atomic<bool>& exact_rows() {
  static std::atomic<bool> asked = false;
  return asked;
}

void use_torch_threads(int requested) {
  requested_threads() = requested;
  set_parallel_for(torch_parallel);
  if (requested != 0) set_num_threads(requested);
}

}  // namespace fovea::binding
