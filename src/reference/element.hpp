// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/tensor.hpp"

namespace fovea::reference {

/// Element `index` of a tensor, as a double. Exact for every dtype.
double load(DType dtype, const void* data, std::int64_t index);

/// Rounds to nearest even. e4m3 saturates.
void store(DType dtype, void* data, std::int64_t index, double value);

}  // namespace fovea::reference
