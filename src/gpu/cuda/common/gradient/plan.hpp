// SPDX-License-Identifier: Apache-2.0
/// Plans of backward passes: counts of tiles, parameters from a problem, the workspace.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "fovea/attention_backward.hpp"
#include "gpu/cuda/common/attention_plan.hpp"
#include "gpu/cuda/common/gradient/params.hpp"
#include "op/attention_backward/problem.hpp"
#include "op/common/attention_core.hpp"
#include "op/common/checks.hpp"
#include "op/common/division.hpp"
#include "op/common/workspace_arena.hpp"

namespace fovea::gpu::gradient {

using Problem = detail::AttentionBackwardProblem;

/// Tiles of the whole batch, with the gaps of a ragged one (sequence.cuh).
inline std::int64_t tiles_of(const Problem& p, std::int64_t total, std::int64_t length, int tile) {
  return p.ragged ? total / tile + p.batch : p.batch * detail::ceil_div(length, tile);
}
inline std::int64_t query_tiles_of(const Problem& p, int tile) { return tiles_of(p, p.total_q, p.max_seq_q, tile); }
inline std::int64_t key_tiles_of(const Problem& p, int tile) { return tiles_of(p, p.total_k, p.max_seq_k, tile); }

/// Whether no sequence has a row. Then the sink's gradient alone is written.
inline bool has_no_rows(const Problem& p) { return p.batch == 0 || (p.total_q == 0 && p.total_k == 0); }

/// Upper bound of the tiles that a kernel indexes.
inline std::int64_t most_tiles(const Problem& p, int key_tile) {
  return std::max(query_tiles_of(p, kQueryTile) * p.heads, key_tiles_of(p, key_tile) * p.kv_heads);
}

/// Declines problems that neither kernel takes.
inline Result<void> accept_shared(const Problem& problem) {
  using detail::declined;
  constexpr std::int64_t kMostHeads = 65535;  // a dimension of a grid
  if (problem.q_dtype != DType::bf16 && problem.q_dtype != DType::f16) return declined("q.dtype", name_of(problem.q_dtype), "bf16 or f16");
  if (auto reason = detail::decline_head_dims(problem)) return *reason;
  if (problem.heads > kMostHeads) return declined("q.shape (heads)", problem.heads, "at most 65535");
  return {};
}

/// An arena of pieces whose offsets are multiples of 256 bytes.
inline detail::WorkspaceArena arena_at(void* base) { return detail::WorkspaceArena(static_cast<std::byte*>(base), 256); }

/// `key_tile`: of the kernel that computes dk and dv.
inline void fill_shape(GradientParams& params, const Problem& p, int key_tile) {
  fill_problem(params, p);
  params.kv_heads = static_cast<int>(p.kv_heads);
  params.leaks = p.mask.left != kUnbounded || p.mask.right != kUnbounded || p.has_sink || p.has_bias;
  params.scale_log2 = in_base_2(p.scale);
  params.query_tiles = static_cast<int>(std::max<std::int64_t>(query_tiles_of(p, kQueryTile), 1));
  params.key_tile = key_tile;
  params.key_tiles = static_cast<int>(key_tiles_of(p, key_tile));
  if (has_no_rows(p)) {
    params.query_tiles = params.key_tiles = 0;
    params.leaks = false;
  }
}

/// The workspace of prepare and finish.
inline void place_shared(detail::WorkspaceArena& arena, GradientParams& params, bool has_sink) {
  const std::int64_t cells = std::int64_t{params.heads} * params.query_tiles;
  params.stats = arena.take<RowStats>(cells);
  params.dq_not_finite = arena.take<int>(cells);
  params.dkv_not_finite = arena.take<int>(std::int64_t{params.key_tiles} * params.kv_heads);
  params.sink_parts = arena.take<float>(has_sink ? cells : 0);
}

/// Adds the arguments of a run, except the tensors of the leaf's kernels.
inline void fill_run(GradientParams& params, const Problem& problem, const AttentionBackwardArgs& args) {
  fill_lists(params, problem, args.forward);
  params.lse = {args.forward.lse, problem.lse};
  if (problem.has_dlse) params.dlse = {args.dlse, problem.dlse};
  params.dsink = problem.has_sink ? args.dsink : nullptr;
}

}  // namespace fovea::gpu::gradient
