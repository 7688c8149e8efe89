// SPDX-License-Identifier: Apache-2.0
/// The host's part of what kernels of dense attention share, forward and backward: the fields that follow from a problem.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "fovea/attention.hpp"
#include "op/attention/problem.hpp"

namespace fovea::gpu {

inline std::int64_t tiles_of(std::int64_t count, std::int64_t tile) { return (count + tile - 1) / tile; }

/// Most keys that a query tile sees.
inline std::int64_t most_keys(const detail::AttentionProblem& p, std::int64_t tokens) {
  const auto reach = [&](std::int64_t bound) { return std::clamp<std::int64_t>(bound, -p.max_seq_k, p.max_seq_k); };
  return std::clamp<std::int64_t>(reach(p.mask.left) + reach(p.mask.right) + tokens, 0, p.max_seq_k);
}

/// A factor that includes log2(e). It is finite, so that 0 times it stays 0.
inline float in_base_2(double factor, double least = -std::numeric_limits<float>::max()) {
  constexpr double kLog2e = 1.4426950408889634;
  return static_cast<float>(std::clamp(factor * kLog2e, least, static_cast<double>(std::numeric_limits<float>::max())));
}

template <class Params>
void fill_problem(Params& params, const detail::AttentionProblem& p) {
  params.batch = static_cast<int>(p.batch);
  params.seq_q = static_cast<int>(p.max_seq_q);
  params.seq_k = static_cast<int>(p.max_seq_k);
  params.heads = static_cast<int>(p.heads);
  params.heads_per_kv = static_cast<int>(p.group());
  params.head_dim_qk = static_cast<int>(p.head_dim_qk);
  params.head_dim_v = static_cast<int>(p.head_dim_v);
  params.mask = p.mask;
  params.scale = static_cast<float>(p.scale);
  params.softcap = static_cast<float>(p.softcap);
  if (p.softcap != 0) params.inv_softcap = in_base_2(2 * p.scale / p.softcap);
}

/// What only a run knows, but for the tensors.
template <class Params>
void fill_lists(Params& params, const detail::AttentionProblem& p, const AttentionArgs& args) {
  params.sink = p.has_sink ? args.sink : nullptr;
  params.cu_seqlens_q = p.ragged ? args.cu_seqlens_q : nullptr;
  params.cu_seqlens_k = p.ragged ? args.cu_seqlens_k : nullptr;
}

}  // namespace fovea::gpu
