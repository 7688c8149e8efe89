// SPDX-License-Identifier: Apache-2.0
/// The host's part of Hopper's dense kernels, forward and backward: their tensors, and the problems that
/// they decline.
#pragma once

#include <algorithm>
#include <array>

#include "gpu/cuda/common/attention_plan.hpp"
#include "gpu/cuda/sm90/clipped_rows.hpp"
#include "op/attention/problem.hpp"
#include "op/common/attention_core.hpp"
#include "op/common/tile_order.hpp"

namespace fovea::gpu::sm90::dense {

/// Descriptions of q, k, v and out for their tensor maps.
inline std::array<RowsDesc, 4> forward_tensors(const detail::AttentionProblem& p, DType out_dtype) {
  const std::int64_t batch = p.ragged ? 1 : p.batch, rows_q = p.ragged ? p.total_q : p.max_seq_q;
  const std::int64_t rows_k = p.ragged ? p.total_k : p.max_seq_k;
  return {{{"q", p.q_dtype, p.q, rows_q, p.heads, batch, p.head_dim_qk, p.q_alignment},
           {"k", p.q_dtype, p.k, rows_k, p.kv_heads, batch, p.head_dim_qk, p.k_alignment},
           {"v", p.q_dtype, p.v, rows_k, p.kv_heads, batch, p.head_dim_v, p.v_alignment},
           {"out", out_dtype, p.out, rows_q, p.heads, batch, p.head_dim_v, p.out_alignment}}};
}

/// Addresses of q, k, v and out.
struct ForwardPointers {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* out = nullptr;
};

/// The rows of a call in the parameters of a kernel, without their maps. `tokens` and `keys`: of a box.
template <class Params>
void fill_rows(Params& params, const std::array<RowsDesc, 4>& tensors, const ForwardPointers& to, int tokens, int keys) {
  const bool any_keys = tensors[1].rows > 0;  // a tensor without rows has no memory
  params.q = rows_of(tensors[0], to.q, tokens);
  params.k = rows_of(tensors[1], any_keys ? to.k : to.q, keys);
  params.v = rows_of(tensors[2], any_keys ? to.v : to.q, keys);
  params.out = rows_of(tensors[3], to.out, tokens);
}

/// Adds the maps. `packed`: heads of a box of queries. `stores`: whether results are stored by a map too.
template <class Params>
Result<void> encode_maps(Params& params, const std::array<RowsDesc, 4>& tensors, int packed, bool stores) {
  if (Result<void> good = encode_rows(params.q, tensors[0], packed); !good) return good;
  if (Result<void> good = encode_rows(params.k, tensors[1]); !good) return good;
  if (Result<void> good = encode_rows(params.v, tensors[2]); !good) return good;
  return stores ? encode_stored_rows(params.out, tensors[3], packed) : Result<void>{};
}

/// A causal mask without a window: later query tiles see more keys.
inline bool is_causal_alone(const detail::AttentionCore& p) { return p.mask.left == kUnbounded && p.mask.right != kUnbounded; }

/// The order of work tiles for `ctas`. `tokens`: of a query tile; `heads`: of all sequences and splits.
/// `cheap_last`: warpgroups whose rows are past the sequence cost nothing.
inline detail::TileOrder tile_order(const detail::AttentionCore& p, std::int64_t tokens, std::int64_t heads, int ctas, bool cheap_last) {
  const bool window = p.mask.left != kUnbounded, causal = p.mask.right != kUnbounded;
  const std::int64_t q_tiles = detail::ceil_div(p.max_seq_q, tokens), last_rows = p.max_seq_q - (q_tiles - 1) * tokens;
  if (q_tiles * heads == 0 || q_tiles * heads >= kCountLimit) return {};
  const detail::TileOrder::Costs costs{.even = causal == window, .short_last = cheap_last && 2 * last_rows <= tokens};
  return {static_cast<int>(q_tiles), static_cast<int>(heads), ctas, costs};
}

/// Keys of a kv head that, with their values, fill a section: 32 MB, of 50 in L2.
inline int section_keys(const detail::AttentionProblem& p) {
  constexpr std::int64_t kSectionBytes = 32 << 20;
  const auto element_bytes = static_cast<std::int64_t>(size_of(p.q_dtype));
  return static_cast<int>(kSectionBytes / ((p.head_dim_qk + p.head_dim_v) * element_bytes));
}

/// Work heads of a section: those of a power of two of kv heads. `packed`: heads of a query tile.
inline std::int64_t section_heads(const detail::AttentionProblem& p, int packed) {
  std::int64_t kv_heads = 1;
  while (2 * kv_heads <= p.kv_heads * p.batch && 2 * kv_heads * p.max_seq_k <= section_keys(p)) kv_heads *= 2;
  return kv_heads * (p.group() / packed);
}

/// Whether a causal call has heads and keys for tickets. Sections of few heads and short sequences are level with pairs or behind.
inline bool has_wide_sections(const detail::AttentionProblem& p, int packed) {
  constexpr std::int64_t kLeastHeads = 32, kLeastKeys = 4096;
  return is_causal_alone(p) && p.max_seq_k >= kLeastKeys && section_heads(p, packed) >= kLeastHeads;
}

/// Whether CTAs draw tickets, which cost a small launch.
inline bool draws_tickets(const detail::AttentionProblem& p, std::int64_t work_tiles, int packed, int multiprocessors) {
  if (p.ragged) return work_tiles > multiprocessors;
  return work_tiles > 4 * multiprocessors && has_wide_sections(p, packed);
}

/// The order of tickets. `tokens`: of a query tile.
inline detail::SectionOrder section_order(const detail::AttentionProblem& p, std::int64_t tokens, int packed) {
  const std::int64_t q_tiles = detail::ceil_div(p.max_seq_q, tokens), heads = p.heads / packed * p.batch;
  return {static_cast<int>(q_tiles), static_cast<int>(heads), static_cast<int>(section_heads(p, packed))};
}

/// `tensors`: the RowsDesc of all.
template <class Tensors>
Result<void> accept_dense(const detail::AttentionCore& problem, const Tensors& tensors) {
  using detail::declined;
  constexpr double kMostSoftcap = 1024;  // the error of the kernels' tanh is 2^-23 of the softcap
  if (problem.softcap > kMostSoftcap) return declined("softcap", detail::number_text(problem.softcap), "at most 1024");
  if (problem.batch >= kCountLimit) return declined("batch", problem.batch, "below 2^30");
  for (const RowsDesc& tensor : tensors) {
    if (Result<void> good = accept_rows(tensor); !good) return good;
  }
  return {};
}

}  // namespace fovea::gpu::sm90::dense
