// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/attention/setup.hpp"

namespace fovea::cpu {

/// Chooses the tile sizes from the shape. README.md has the measurements.
constexpr Tuning choose_tuning(const detail::AttentionCore& core, const AttentionKernels& kernels, int threads, bool ragged) {
  Tuning t{};
  const std::int64_t group = core.group(), max_rows = std::max<std::int64_t>(core.max_seq_q, 1) * group;
  const std::int64_t dims = core.head_dim_qk + core.head_dim_v;

  // A few calls of the micro-kernel share a panel while it is in the first-level cache.
  t.chunk_rows = kernels.block_rows * (kernels.block_rows <= 8 ? 8 : 2);
  t.kv_tile = 512;
  while (t.kv_tile > 64 && t.kv_tile * dims * kernels.operand_bytes > kernels.tile_bytes) t.kv_tile /= 2;
  t.stream_tile = 128;
  t.stream_rows = 8;
  t.split_rows = static_cast<int>(std::clamp<std::int64_t>(group, 16, kMostSplitRows));
  t.split_keys = kSplitKeys;

  // Fewer rows share a packing if some threads would otherwise have no work. No sum depends on it.
  std::int64_t rows = 1024;
  while (rows > kMinQRows && rows * (core.head_dim_qk * kernels.operand_bytes + core.head_dim_v * 4) > kernels.row_bytes) rows /= 2;
  const std::int64_t heads = core.kv_heads * (ragged ? 1 : std::max<std::int64_t>(core.batch, 1));
  while (rows > kMinQRows && heads * ceil_div(max_rows, rows) < 4 * threads) rows /= 2;
  t.q_rows = static_cast<int>(round_up(std::min(std::max<std::int64_t>(rows, t.split_rows), max_rows), kernels.block_rows));
  return t;
}

}  // namespace fovea::cpu
