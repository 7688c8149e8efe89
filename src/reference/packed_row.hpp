// SPDX-License-Identifier: Apache-2.0
/// The packed latent formats, stated plainly. The vector code is compared with this, bit for bit.
#pragma once

#include <cstdint>
#include <span>

#include "fovea/latent_attention.hpp"

namespace fovea::reference {

/// The unrounded values (code * scale) of one token. `block` points to the first byte of its block.
void decode_row(const PackedFormat& format, const void* block, std::int64_t slot, std::int64_t page, double* row);

/// Quantises the values of one token into its bytes.
void encode_row(const PackedFormat& format, ScaleRule rule, std::span<const float> row, void* block, std::int64_t slot, std::int64_t page);

}  // namespace fovea::reference
