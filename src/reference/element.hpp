// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "fovea/kv_format.hpp"
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

/// A row of a KV cache format: its codes, and its own scales side by side.
struct KvRow {
  const KvRowFormat& format;
  const void *codes, *scales;
  DType scale_dtype;
};

/// The unrounded values of a row, without k_scale or v_scale.
void decode_kv_row(const KvRow& bytes, std::span<double> row);

}  // namespace fovea::reference
