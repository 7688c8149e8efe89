// SPDX-License-Identifier: Apache-2.0
/// Plans of dense attention, forward and backward: parameters from a problem, packed heads, splits.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <numbers>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "fovea/attention.hpp"
#include "gpu/cuda/common/attention_params.hpp"
#include "op/attention/problem.hpp"
#include "op/common/division.hpp"

namespace fovea::gpu {

/// Most keys that a query tile sees.
inline std::int64_t most_keys(const detail::AttentionCore& p, std::int64_t tokens) {
  const auto reach = [&](std::int64_t bound) { return std::clamp<std::int64_t>(bound, -p.max_seq_k, p.max_seq_k); };
  return std::clamp<std::int64_t>(reach(p.mask.left) + reach(p.mask.right) + tokens, 0, p.max_seq_k);
}

/// Query heads of one kv head that share a query tile: as many as fill it, a power of two that divides `group`, `most` at most.
constexpr int packed_heads(std::int64_t group, std::int64_t seq_q, int row_tile, int most) {
  int packed = 1;
  while (2 * packed <= most && group % (2 * packed) == 0 && seq_q * packed < row_tile) packed *= 2;
  return packed;
}

/// Splits of the keys of each query tile, at most `most`, for calls with fewer work tiles than `slots` for them.
constexpr int splits_of(std::int64_t work_tiles, std::int64_t most, int slots) {
  constexpr std::int64_t kMostSplits = 32;
  if (work_tiles == 0) return 1;
  return static_cast<int>(std::clamp<std::int64_t>(std::min(slots / work_tiles, most), 1, kMostSplits));
}

/// End of a plan's tuning if probabilities are rounded to e4m3, for MMAs of e4m3. Tests allow for that rounding.
inline constexpr const char* kE4m3Products = ", e4m3 products";

/// `Tuning`: a row of a leaf's tuning.hpp.
template <class Tuning>
std::string tiles_text(const Tuning& tuning, int packed, int splits) {
  std::string text = std::to_string(tuning.row_tile()) + " x " + std::to_string(tuning.key_tile) + " tiles for head dims up to " +
                     std::to_string(tuning.head_dim_qk) + "/" + std::to_string(tuning.head_dim_v);
  if constexpr (requires { tuning.cluster; }) {
    if (tuning.cluster > 1) text += ", " + std::to_string(tuning.cluster) + " CTAs share keys";
  }
  if (packed > 1) text += ", " + std::to_string(packed) + " heads to a query tile";
  if (splits > 1) text += ", keys in " + std::to_string(splits) + " splits";
  return text;
}

/// ScoreTransform::enabled. Otherwise the softmax multiplies q . k by a factor above 0.
inline bool transforms_scores(const detail::AttentionCore& p) {
  return p.softcap != 0 || p.scale < 0 || p.scale * std::numbers::log2e > static_cast<double>(std::numeric_limits<float>::max());
}

/// A factor that includes log2(e). It is finite, so that 0 times it stays 0.
inline float in_base_2(double factor, double least = -std::numeric_limits<float>::max()) {
  return static_cast<float>(std::clamp(factor * std::numbers::log2e, least, static_cast<double>(std::numeric_limits<float>::max())));
}

/// `Params`: AttentionParams, or its fields in another order.
template <class Params>
void fill_problem(Params& params, const detail::AttentionCore& p) {
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

inline Splits splits_for(const detail::AttentionCore& p, int count) {
  return {.count = count,
          .rows = p.total_q,
          .seq_q = static_cast<int>(p.max_seq_q),
          .heads = static_cast<int>(p.heads),
          .head_dim_v = static_cast<int>(p.head_dim_v),
          .result_strides = p.out,
          .lse_strides = p.lse};
}
/// Adds the arguments of a run. `memory` has bytes() of them.
inline void fill_splits(Splits& splits, const detail::AttentionCore& p, const auto& args, void* memory) {
  if (splits.count == 1) return;
  splits.out = static_cast<float*>(memory);
  splits.lse = splits.out + splits.count * splits.cells() * splits.head_dim_v;
  splits.sink = p.has_sink ? args.sink : nullptr;
  splits.result = args.out;
  splits.result_lse = p.has_lse ? args.lse : nullptr;
}

/// Adds the arguments of a run, except the tensors.
template <class Params>
void fill_lists(Params& params, const detail::AttentionProblem& p, const AttentionArgs& args) {
  params.sink = p.has_sink ? args.sink : nullptr;
  params.cu_seqlens_q = p.ragged ? args.cu_seqlens_q : nullptr;
  params.cu_seqlens_k = p.ragged ? args.cu_seqlens_k : nullptr;
}

}  // namespace fovea::gpu
