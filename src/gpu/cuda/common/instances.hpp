// SPDX-License-Identifier: Apache-2.0
/// Instances of kernels: they are compiled for types and constants, which a problem has as values.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "fovea/tensor.hpp"

namespace fovea::gpu {

/// The function for row `index` of a tuning table of kRows rows. `Of` returns it for a std::integral_constant.
template <std::size_t kRows, class Of>
auto function_of_row(int index, Of) {
  constexpr auto kFunctions = []<int... kIndex>(std::integer_sequence<int, kIndex...>) {
    return std::array{Of{}(std::integral_constant<int, kIndex>{})...};
  }
  (std::make_integer_sequence<int, kRows>{});
  return kFunctions[static_cast<std::size_t>(index)];
}

/// An instance has a type and a row of a tuning table. `kWith`: it has something that others of the row lack.
template <class Type, int kIndex, bool kHas = false>
struct Instance {
  using Element = Type;
  static constexpr int kRow = kIndex;
  static constexpr bool kWith = kHas;
};

/// The same of kernels with instances for f16 and bf16: `Of` returns it for an Instance.
template <std::size_t kRows, class Of>
auto instance_of(DType dtype, int index, Of) {
  if (dtype == DType::f16) return function_of_row<kRows>(index, [](auto row) { return Of{}(Instance<__half, row.value>{}); });
  return function_of_row<kRows>(index, [](auto row) { return Of{}(Instance<__nv_bfloat16, row.value>{}); });
}

/// The same of kernels that also have instances with and without something.
template <std::size_t kRows, class Of>
auto instance_of(DType dtype, bool with, int index, Of) {
  const auto without_it = [](auto of) { return Of{}(Instance<typename decltype(of)::Element, of.kRow, false>{}); };
  const auto with_it = [](auto of) { return Of{}(Instance<typename decltype(of)::Element, of.kRow, true>{}); };
  return with ? instance_of<kRows>(dtype, index, with_it) : instance_of<kRows>(dtype, index, without_it);
}

}  // namespace fovea::gpu
