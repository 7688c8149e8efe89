// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "fovea/latent_attention.hpp"
#include "fovea/tensor.hpp"

namespace fovea::reference {

/// Element `index` of a tensor, as a double. Exact for every dtype.
double load(DType dtype, const void* data, std::int64_t index);

/// Rounds to nearest even. e4m3 saturates.
void store(DType dtype, void* data, std::int64_t index, double value);

/// The unrounded values (code * scale) of one token. `block` points to the first byte of its block.
void decode_row(const PackedFormat& format, const void* block, std::int64_t slot, std::int64_t page, double* row);

/// Quantises the values of one token into its bytes.
void encode_row(const PackedFormat& format, ScaleRule rule, std::span<const float> row, void* block, std::int64_t slot, std::int64_t page);

}  // namespace fovea::reference
