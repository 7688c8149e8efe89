// SPDX-License-Identifier: Apache-2.0
/// A call as XLA hands it over: buffers by the names of fields, and numbers by name. Source of the interface: XLA's FFI, xla/ffi/api/ffi.h.
#pragma once

#include <xla/ffi/api/ffi.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "fovea/fovea.hpp"

namespace fovea::jax {

namespace ffi = xla::ffi;

/// A row-major tensor and its address.
struct Buffer {
  TensorDesc desc{};
  void* address = nullptr;

  std::int64_t elements() const;
};

[[noreturn]] void raise_invalid(std::string_view field, std::string_view got, std::string_view want);

/// The buffers and attributes of a call. The attributes `inputs` and `outputs` name the buffers in order, "q,k,v"; "_" is one that the
/// library does not see. Whatever is read becomes part of key(), so that calls with one key have one plan.
class Call {
 public:
  Call(ffi::RemainingArgs inputs, ffi::RemainingRets outputs, ffi::Dictionary attributes);

  /// Null where the call has no such buffer.
  const Buffer* buffer(std::string_view name);
  /// An integer, a double or a std::string_view.
  template <class T>
  std::optional<T> attribute(std::string_view name);

  const std::string& key() const { return key_; }

 private:
  void add_to_key(const void* bytes, std::size_t size) { key_.append(static_cast<const char*>(bytes), size).append(1, ';'); }

  ffi::Dictionary attributes_;
  std::map<std::string, Buffer, std::less<>> buffers_;
  std::string key_;
};

template <class T>
std::optional<T> Call::attribute(std::string_view name) {
  if (!attributes_.contains(name)) return std::nullopt;
  const auto value = attributes_.get<T>(name);
  if (!value.has_value()) raise_invalid(name, "another type", "the type of its default");
  add_to_key(name.data(), name.size());  // a bound to the left is not one to the right
  if constexpr (std::is_same_v<T, std::string_view>) {
    add_to_key(value->data(), value->size());
  } else {
    add_to_key(&*value, sizeof *value);
  }
  return *value;
}

}  // namespace fovea::jax
