// SPDX-License-Identifier: Apache-2.0
/// Which tiles of attention/tuning.hpp serve paged attention, and which calls are left to the portable kernel.
#pragma once

#include <array>
#include <cstdint>
#include <numeric>
#include <string_view>

#include "gpu/cuda/sm90/attention/tuning.hpp"

namespace fovea::gpu::sm90::paged_attention {

/// Rows of attention::kTunings, narrowest first; of equal head dims, the row for more query rows first.
inline constexpr std::array kTunings{0, 2, 3, 5, 7};

constexpr const attention::Tuning& tuning_of(int kernel) {
  return attention::kTunings[static_cast<std::size_t>(kTunings[static_cast<std::size_t>(kernel)])];
}

/// The first kernel that takes these head dims, both at most 256, and so many query rows of a sequence: half of them under a causal mask.
constexpr int kernel_of(std::int64_t head_dim_qk, std::int64_t head_dim_v, std::int64_t query_rows) {
  int kernel = 0;
  const auto takes = [&](const attention::Tuning& row) {
    return row.head_dim_qk >= head_dim_qk && row.head_dim_v >= head_dim_v && query_rows >= row.rows_from;
  };
  while (!takes(tuning_of(kernel))) ++kernel;
  return kernel;
}

inline constexpr int kGroupRows = 8;  // of the swizzle's pattern: pages are multiples of it

/// Rows of a key tile that one page holds, whichever tile it is.
constexpr int box_rows(std::int64_t page, int key_tile) { return static_cast<int>(std::gcd(page, std::int64_t{key_tile})); }

/// Why the portable kernel is faster, else empty. It splits keys, and reads each query tile of few rows with less arithmetic. `rows`: of all
/// heads of a kv head in a sequence, on average, as only the device knows the lengths. With 64 of them the two kernels are level, with 128
/// this one is 2.8 times as fast; a quarter of the multiprocessors lose 20 % to the portable kernel on all (2026-11-25-paged-prefill.json).
constexpr std::string_view outdone_by_portable(std::int64_t rows, std::int64_t work_tiles, int multiprocessors) {
  if (rows < 64) return "sequences have less than 64 query rows for each kv head on average, too few for tiles of 128";
  if (3 * work_tiles < multiprocessors) return "too few query tiles for a device of which this kernel splits no keys";
  return {};
}

}  // namespace fovea::gpu::sm90::paged_attention
