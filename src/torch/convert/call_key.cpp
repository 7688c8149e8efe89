// SPDX-License-Identifier: Apache-2.0
#include "call_key.hpp"

#include <bit>

#include "arguments.hpp"

namespace fovea::binding {

CallKey& CallKey::current() {
  thread_local CallKey key;
  return key;
}

void CallKey::add(const Tensor& tensor) {
  try {
    std::int32_t dtype = 0;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &dtype));
    add(dtype);
    add(tensor.device());
    add(alignment_of_address(tensor.data_ptr()));
    const auto shape = tensor.sizes(), strides = tensor.strides();
    add(shape.size());
    words_.insert(words_.end(), shape.begin(), shape.end());
    for (std::size_t axis = 0; axis < shape.size(); ++axis) add(shape[axis] == 1 ? 0 : strides[axis]);
    if (!fits_storage(tensor)) is_whole_ = false;
  } catch (...) {
    is_whole_ = false;
  }
}

void CallKey::add(const torch::stable::Device& device) {
  add(static_cast<std::int64_t>(device.type()));
  add(device.index());
}

void CallKey::add(const std::string& text) {
  add(text.size());
  for (const char character : text) add(character);
}

void CallKey::add(double value) { add(std::bit_cast<std::int64_t>(value)); }

std::size_t CallKeyHash::operator()(const std::vector<std::int64_t>& words) const noexcept {
  std::uint64_t hash = words.size();
  for (const std::int64_t word : words) {
    hash = (hash ^ static_cast<std::uint64_t>(word)) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace fovea::binding
