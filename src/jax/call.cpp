// SPDX-License-Identifier: Apache-2.0
#include "call.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

namespace fovea::jax {
namespace {

DType dtype_of(ffi::DataType dtype, const std::string& name) {
  switch (dtype) {
    case ffi::DataType::F32: return DType::f32;
    case ffi::DataType::F16: return DType::f16;
    case ffi::DataType::BF16: return DType::bf16;
    case ffi::DataType::F8E4M3FN: return DType::e4m3;
    case ffi::DataType::S8: return DType::i8;
    case ffi::DataType::S32: return DType::i32;
    case ffi::DataType::S64: return DType::i64;
    case ffi::DataType::F64: return DType::f64;
    default: raise_invalid(name + ".dtype", "a dtype that Fovea does not know", "a float of 8 to 64 bits or an integer of 8, 32 or 64");
  }
}

/// XLA aligns every buffer to 16 bytes and more.
constexpr std::int32_t kAlignment = 16;

Buffer buffer_of(const ffi::AnyBuffer& from, const std::string& name) {
  const auto extents = from.dimensions();
  if (extents.size() > 4) raise_invalid(name + ".ndim", std::to_string(extents.size()), "4 or fewer");
  Buffer buffer{.desc = contiguous(dtype_of(from.element_type(), name), {}), .address = from.untyped_data()};
  buffer.desc.rank = static_cast<int>(extents.size());
  std::copy(extents.begin(), extents.end(), buffer.desc.shape.begin());
  std::int64_t stride = 1;
  for (int axis = buffer.desc.rank - 1; axis >= 0; --axis) {
    const auto at = static_cast<std::size_t>(axis);
    buffer.desc.strides[at] = stride;
    stride *= std::max<std::int64_t>(buffer.desc.shape[at], 1);
  }
  buffer.desc.alignment = kAlignment;
  return buffer;
}

/// Calls f(name, index) for each of "q,k,v".
template <class F>
void for_each_name(std::string_view names, const F& f) {
  for (std::size_t index = 0; !names.empty(); ++index) {
    const std::size_t end = std::min(names.find(','), names.size());
    f(std::string(names.substr(0, end)), index);
    names.remove_prefix(std::min(end + 1, names.size()));
  }
}

}  // namespace

void raise_invalid(std::string_view field, std::string_view got, std::string_view want) {
  throw Exception(Error{.code = ErrorCode::invalid_argument,
                        .message = std::string(field).append(": got ").append(got).append(", want ").append(want)});
}

std::int64_t Buffer::elements() const {
  return std::accumulate(desc.shape.begin(), desc.shape.begin() + desc.rank, std::int64_t{1}, std::multiplies<>());
}

Call::Call(ffi::RemainingArgs inputs, ffi::RemainingRets outputs, ffi::Dictionary attributes) : attributes_(attributes) {
  for_each_name(attribute<std::string_view>("inputs").value_or(""), [&](const std::string& name, std::size_t index) {
    if (name != "_") buffers_.emplace(name, buffer_of(*inputs.get<ffi::AnyBuffer>(index), name));
  });
  for_each_name(attribute<std::string_view>("outputs").value_or(""), [&](const std::string& name, std::size_t index) {
    buffers_.emplace(name, buffer_of(**outputs.get<ffi::AnyBuffer>(index), name));
  });
}

const Buffer* Call::buffer(std::string_view name) {
  const auto found = buffers_.find(name);
  if (found == buffers_.end()) return nullptr;
  const TensorDesc& desc = found->second.desc;
  add_to_key(&desc.dtype, sizeof desc.dtype);
  add_to_key(desc.shape.data(), sizeof(std::int64_t) * static_cast<std::size_t>(desc.rank));
  return &found->second;
}

}  // namespace fovea::jax
