// SPDX-License-Identifier: Apache-2.0
/// Conversions of the storage formats, written independently of the library so that a mistake there cannot hide itself.
#pragma once

#include <cstdint>

#include "fovea/tensor.hpp"

namespace fovea::check {

/// The value of element `index` behind `data`, exact.
float load(DType dtype, const void* data, std::int64_t index);

/// Rounds to nearest even; e4m3 saturates at +-448, the wider formats overflow to infinity.
void store(DType dtype, void* data, std::int64_t index, float value);

/// `value` rounded to the format.
float rounded(DType dtype, float value);

/// Distance between neighbours of the format at this magnitude.
double ulp(DType dtype, double magnitude);

}  // namespace fovea::check
