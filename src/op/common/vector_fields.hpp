// SPDX-License-Identifier: Apache-2.0
/// Fields that the library reads by pointer alone. A binding, which has the tensor, checks its dtype and (where the row has a count) its
/// size.
#pragma once

#include <cstdint>
#include <type_traits>

#include "fovea/tensor.hpp"

namespace fovea::detail {

template <class Row>
constexpr bool kMayBeVector = Row::kHasPointer && (std::is_void_v<typename Row::InDesc> || std::is_same_v<typename Row::InDesc, bool>);

template <class Row>
consteval DType dtype_of_pointer() {
  using T = std::remove_const_t<typename Row::Pointee>;
  if (std::is_same_v<T, std::int32_t>) return DType::i32;
  return std::is_same_v<T, std::int64_t> ? DType::i64 : DType::f32;
}

}  // namespace fovea::detail
