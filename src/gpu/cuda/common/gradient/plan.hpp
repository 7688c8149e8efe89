// SPDX-License-Identifier: Apache-2.0
/// The host's part of what backward passes share: counts of tiles, the fields that follow from a problem, the workspace.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "fovea/attention_backward.hpp"
#include "gpu/cuda/common/gradient/tiles.hpp"
#include "op/attention_backward/problem.hpp"

namespace fovea::gpu::gradient {

using Problem = detail::AttentionBackwardProblem;

/// Tiles of the whole batch, with the gaps of a ragged one (sequence.cuh).
inline std::int64_t tiles_of(const Problem& p, std::int64_t total, std::int64_t length, int tile) {
  return p.ragged ? total / tile + p.batch : p.batch * ((length + tile - 1) / tile);
}
inline std::int64_t query_tiles_of(const Problem& p, int tile) { return tiles_of(p, p.total_q, p.max_seq_q, tile); }
inline std::int64_t key_tiles_of(const Problem& p, int tile) { return tiles_of(p, p.total_k, p.max_seq_k, tile); }

/// Parts of a workspace, one behind the other.
class Parts {
 public:
  explicit Parts(void* base) : base_(static_cast<std::byte*>(base)) {}
  template <class T>
  void take(T*& to, std::int64_t count) {
    constexpr std::size_t kAlignment = 256;
    if (base_ != nullptr) to = reinterpret_cast<T*>(base_ + bytes_);
    bytes_ += (static_cast<std::size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  std::size_t bytes_ = 0;
};

/// `key_tile`: of the kernel that computes dk and dv.
template <class Params>
void fill_shape(Params& params, const Problem& p, int key_tile) {
  params.batch = static_cast<int>(p.batch);
  params.seq_q = static_cast<int>(p.max_seq_q);
  params.seq_k = static_cast<int>(p.max_seq_k);
  params.heads = static_cast<int>(p.heads);
  params.kv_heads = static_cast<int>(p.kv_heads);
  params.heads_per_kv = static_cast<int>(p.group());
  params.head_dim_qk = static_cast<int>(p.head_dim_qk);
  params.head_dim_v = static_cast<int>(p.head_dim_v);
  params.mask = p.mask;
  params.leaks = p.mask.left != kUnbounded || p.mask.right != kUnbounded || p.has_sink;
  constexpr double kLog2e = 1.4426950408889634;
  const double kMost = std::numeric_limits<float>::max();
  const auto finite = [&](double x) { return static_cast<float>(std::clamp(x, -kMost, kMost)); };
  params.scale = static_cast<float>(p.scale);
  params.scale_log2 = finite(p.scale * kLog2e);
  params.softcap = static_cast<float>(p.softcap);
  if (p.softcap != 0) params.inv_softcap = finite(2 * kLog2e * p.scale / p.softcap);
  params.query_tiles = static_cast<int>(std::max<std::int64_t>(query_tiles_of(p, kQueryTile), 1));
  params.key_tile = key_tile;
  params.key_tiles = static_cast<int>(key_tiles_of(p, key_tile));
}

/// What prepare and finish need of the workspace.
template <class Params>
void place_shared(Parts& parts, Params& params, bool has_sink) {
  const std::int64_t cells = std::int64_t{params.heads} * params.query_tiles;
  parts.take(params.stats, cells);
  parts.take(params.dq_not_finite, cells);
  parts.take(params.dkv_not_finite, std::int64_t{params.key_tiles} * params.kv_heads);
  parts.take(params.sink_parts, has_sink ? cells : 0);
}

/// What only a run knows, but for the tensors that the leaf's kernels read.
template <class Params>
void fill_run(Params& params, const Problem& problem, const AttentionBackwardArgs& args) {
  const AttentionArgs& forward = args.forward;
  params.lse = {forward.lse, problem.lse};
  params.sink = problem.has_sink ? forward.sink : nullptr;
  params.dsink = problem.has_sink ? args.dsink : nullptr;
  params.cu_seqlens_q = problem.ragged ? forward.cu_seqlens_q : nullptr;
  params.cu_seqlens_k = problem.ragged ? forward.cu_seqlens_k : nullptr;
}

}  // namespace fovea::gpu::gradient
