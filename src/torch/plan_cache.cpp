// SPDX-License-Identifier: Apache-2.0
#include "plan_cache.hpp"

#include <bit>

#include "arguments.hpp"
#include "call_words.hpp"

namespace fovea::binding {

CallKey& CallKey::current() {
  thread_local CallKey key;
  return key;
}

LastCall& last_call() {
  thread_local LastCall last;
  return last;
}

void CallKey::add(const Tensor& tensor) {
  try {
    std::int32_t dtype = 0;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &dtype));
    add(dtype);
    add(tensor.device());
    add(alignment_of(tensor));
    const auto shape = tensor.sizes(), strides = tensor.strides();
    add(shape.size());
    words_.insert(words_.end(), shape.begin(), shape.end());
    words_.insert(words_.end(), strides.begin(), strides.end());
    if (!fits_storage(tensor)) is_whole_ = false;
  } catch (...) {
    is_whole_ = false;  // what is wrong with the tensor, describing it will say
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

std::size_t CallKeyHash::operator()(const std::vector<std::int64_t>& words) const noexcept { return hash_of_words(words); }

}  // namespace fovea::binding
