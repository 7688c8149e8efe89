// SPDX-License-Identifier: Apache-2.0
/// Tiles of the forward kernel by head dims. No row is measured: no device has run the kernel.
#pragma once

#include <array>
#include <cstdint>

#include "gpu/common/tuning_table.hpp"

namespace fovea::gpu::sm100::attention {

struct Tuning {
  int head_dim_qk = 0, head_dim_v = 0;  ///< the largest that it takes; smaller ones are padded with zeros
  int stages = 0;                       ///< tiles of keys or values in shared memory
  int polynomial_every = 0;             ///< one pair of so many pairs of exponentials is a polynomial
  int softmax_registers = 192, correction_registers = 72, other_registers = 56;  ///< of a thread
  int key_tile = 128;

  static constexpr int row_tile() { return 256; }
};

/// Narrowest first. Stages fill shared memory beside the queries, as far as they are of use. Shares of the
/// polynomial and registers are those of public kernels.
inline constexpr auto kTunings = std::to_array<Named<Tuning>>({
    {"64", {64, 64, 6, 8}},
    {"128", {128, 128, 4, 8}},
    {"192x128", {192, 128, 2, 16}},
});

/// The first row that takes these head dims; the number of rows if none does.
constexpr int tuning_index(std::int64_t head_dim_qk, std::int64_t head_dim_v) {
  int index = 0;
  for (const Tuning& row : kTunings) {
    if (row.head_dim_qk >= head_dim_qk && row.head_dim_v >= head_dim_v) break;
    ++index;
  }
  return index;
}

}  // namespace fovea::gpu::sm100::attention
