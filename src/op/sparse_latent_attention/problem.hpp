// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>

#include "fovea/latent_attention.hpp"
#include "op/common/attention_core.hpp"
#include "op/common/latent_cache.hpp"
#include "op/common/option.hpp"

namespace fovea::detail {

/// A cache and the tokens that each query row reads from it.
struct SparseSelection {
  LatentCacheView cache{};
  std::int64_t topk = 0;
  std::int64_t batch_stride = 0, row_stride = 0;  ///< of the indices
  bool has_topk_length = false;
  Extent cache_extent{}, indices_extent{}, lengths_extent{};
};

/// A token-sparse MLA that makes sense; only validate() makes one. `max_seq_k` bounds the tokens of a row, both caches together.
struct SparseLatentAttentionProblem : AttentionCore {
  bool flat = false;  ///< q [seq_q, head, d]: batch is 1, topk_length counts rows, lse is [seq_q, head]
  bool has_max_logits = false;
  RowStrides max_logits{};
  Extent q_extent{}, out_extent{}, lse_extent{}, max_logits_extent{}, sink_extent{};
  SparseSelection main{};
  std::optional<SparseSelection> extra{};
};

inline constexpr std::array kSparseLatentAttentionOptions{
    Option<SparseLatentAttentionProblem>{"flat", [](const SparseLatentAttentionProblem& p) { return p.flat; }},
    Option<SparseLatentAttentionProblem>{"main.topk_length", [](const SparseLatentAttentionProblem& p) { return p.main.has_topk_length; }},
    Option<SparseLatentAttentionProblem>{"extra", [](const SparseLatentAttentionProblem& p) { return p.extra.has_value(); }},
    Option<SparseLatentAttentionProblem>{"extra.topk_length",
                                         [](const SparseLatentAttentionProblem& p) { return p.extra && p.extra->has_topk_length; }},
    option::kSink<SparseLatentAttentionProblem>,
    option::kLse<SparseLatentAttentionProblem>,
    Option<SparseLatentAttentionProblem>{"max_logits", [](const SparseLatentAttentionProblem& p) { return p.has_max_logits; }},
    option::kBatchInvariant<SparseLatentAttentionProblem>,
    option::kExactRows<SparseLatentAttentionProblem>};

/// The only maker of a SparseLatentAttentionProblem.
Result<SparseLatentAttentionProblem> validate(const SparseLatentAttentionDesc& desc, const PlanOptions& options);

/// Pointers of run(): present where the description asks for them, aligned, and outputs apart from all else. Nothing else can be wrong: bad
/// indices are ignored, and so is what a topk_length outside 0 .. topk asks for beyond it.
Result<void> check_args(const SparseLatentAttentionProblem& problem, const SparseLatentAttentionArgs& args);

}  // namespace fovea::detail
