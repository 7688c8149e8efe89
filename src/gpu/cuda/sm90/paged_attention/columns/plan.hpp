// SPDX-License-Identifier: Apache-2.0
/// Which calls of exact rows two kernels compute by columns, and their workspace.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "gpu/cuda/sm90/paged_attention/columns/config.hpp"
#include "op/common/workspace_arena.hpp"
#include "op/paged_attention/problem.hpp"

namespace fovea::gpu::sm90::paged_attention::columns {

inline constexpr int kMostGroups = 4;                              // of eight columns, of a CTA
inline constexpr std::size_t kMostBytes = std::size_t{128} << 20;  // of the workspace

/// A call by columns. `kernel`: the row of kKernels whose tiles it has.
struct Call {
  int kernel = 0, groups = 0, ctas_of_cell = 0;

  std::string tuning() const {
    return ", one key tile to a CTA for scores, " + std::to_string(8 * groups) + " columns to a CTA for values";
  }
};

/// The pieces of a workspace.
inline std::size_t take(Params& params, const detail::PagedAttentionProblem& p, std::int64_t cells, int key_tile, std::byte* memory) {
  params.score_rows = static_cast<int>(std::min<std::int64_t>(p.max_seq_q * p.group(), kRows));
  params.key_tiles = static_cast<int>(detail::ceil_div(p.max_seq_k, key_tile));
  detail::WorkspaceArena arena(memory);
  params.scores = arena.take<float>(cells * params.key_tiles * params.score_words(key_tile));
  params.ready = arena.take<int>(cells * params.key_tiles);
  params.states = arena.take<int>(2 * cells);
  return arena.bytes();
}

/// Most cells whose CTAs run at once. With more, one kernel is faster: 40 cells of 8192 keys take 130 us by columns and 100 in one
/// kernel, 32 cells 85 and 100 (bench/results/nvidia-h100/2026-11-28-exact-decode.json).
inline std::int64_t most_cells(const detail::PagedAttentionProblem& p, int multiprocessors) {
  return multiprocessors / std::max<std::int64_t>(detail::ceil_div(p.head_dim_v, 8 * kMostGroups), 4);
}

/// CTAs of scores for each multiprocessor. Few leave room for the CTAs of values, which start earlier: one sequence of 131072 keys takes
/// 365 us with two and 413 with four, two sequences of 8192 take 58 and 54.
constexpr int score_ctas(int groups) { return groups == 1 ? 2 : 4; }

/// Bytes that the largest call by columns within the bounds of this one needs, up to kMostBytes: monotone in the bounds.
inline std::size_t workspace_bytes(const detail::PagedAttentionProblem& p, int kernel, int multiprocessors) {
  Params params{};
  const std::int64_t cells = std::min(p.batch * p.kv_heads, most_cells(p, multiprocessors));
  return std::min(take(params, p, cells, tuning_of(kernel).key_tile, nullptr), kMostBytes);
}

/// Nothing where one kernel computes the call: with long query tiles, or with sequences enough for all multiprocessors.
inline std::optional<Call> call_of(const detail::PagedAttentionProblem& p, int kernel, int multiprocessors) {
  const std::int64_t cells = p.batch * p.kv_heads;
  if (cells == 0 || cells > most_cells(p, multiprocessors) || p.max_seq_q * p.group() > kRows || p.max_seq_k == 0) return {};
  if (workspace_bytes(p, kernel, multiprocessors) >= kMostBytes) return {};
  int groups = 1;
  while (groups < kMostGroups && cells * detail::ceil_div(p.head_dim_v, 8 * groups) > multiprocessors) groups *= 2;
  const std::int64_t tiles = detail::ceil_div(p.max_seq_k, tuning_of(kernel).key_tile);
  const std::int64_t ctas = std::min(detail::ceil_div(std::int64_t{score_ctas(groups)} * multiprocessors, cells), tiles);
  return Call{kernel, groups, static_cast<int>(ctas)};
}

}  // namespace fovea::gpu::sm90::paged_attention::columns
