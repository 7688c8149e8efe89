// SPDX-License-Identifier: Apache-2.0
/// Token-sparse MLA: every query row is a sequence of its own, whose keys are the entries of its lists.
#include "cpu/implementations.hpp"
#include "cpu/latent_attention/setup.hpp"
#include "op/sparse_latent_attention/problem.hpp"

namespace fovea::detail {

/// Nothing in the lists can be wrong: an index that names no token is skipped.
static Result<void> check_lengths(const SparseLatentAttentionProblem&, const SparseLatentAttentionArgs&) { return {}; }

}  // namespace fovea::detail

namespace fovea::cpu {
namespace {

using detail::SparseLatentAttentionProblem;

Call make_call(const SparseLatentAttentionArgs& args) {
  const auto list = [](const SparseLatentAttentionArgs::Selection& from) { return Call::List{from.cache, from.indices, from.topk_length}; };
  return {.q = args.q,
          .out = args.out,
          .lse = args.lse,
          .sink = args.sink,
          .main = list(args.main),
          .extra = list(args.extra),
          .max_logits = args.max_logits};
}

LatentCache listed_cache(const detail::SparseSelection& selection) {
  LatentCache cache = latent_cache(selection.cache);
  cache.topk = selection.topk;
  cache.batch_stride = selection.batch_stride;
  cache.row_stride = selection.row_stride;
  cache.has_topk_length = selection.has_topk_length;
  return cache;
}

/// The problem as the engine sees it: a batch of single query rows.
detail::AttentionCore one_row_each(detail::AttentionCore core) {
  core.batch = core.total_q;
  core.max_seq_q = 1;
  return core;
}

/// Many rows keep every thread busy without partial results, which would take more memory than the listed tokens.
constexpr std::int64_t kMostSplitRows = 4;

template <class Isa>
detail::PlanResult<SparseLatentAttentionArgs> plan(const SparseLatentAttentionProblem& problem, Device) {
  Setup setup = make_latent_setup<Isa>(one_row_each(problem), false, problem.main.cache);
  if (problem.max_seq_q > kMostSplitRows) setup.tuning.split_rows = 0;
  Latent& latent = *setup.latent;
  latent.main = listed_cache(problem.main);
  if (problem.extra) latent.extra = listed_cache(*problem.extra);
  latent.sparse = true;
  latent.length_of_row = problem.flat;
  latent.seq_q = std::max<std::int64_t>(problem.max_seq_q, 1);
  latent.max_logits = problem.max_logits;
  using State = AttentionState<SparseLatentAttentionProblem, SparseLatentAttentionArgs>;
  return std::shared_ptr<const detail::PlanState<SparseLatentAttentionArgs>>(
      std::make_shared<State>(kEntryName<detail::SparseLatentAttention, Isa>, problem, setup, make_call));
}

constexpr std::string_view kAccepts = "f32, f16, bf16 and packed rows of 576 or 512; any heads, page and top-k; an extra cache";
constexpr auto kHandled = detail::handles<detail::SparseLatentAttention>(kEngineOptions, "options.exact_rows", "flat", "main.topk_length",
                                                                         "extra", "extra.topk_length", "max_logits");

constexpr auto kEntries =
    Bf16Sets::each([]<class Isa>() { return entry<detail::SparseLatentAttention, Isa>(kAccepts, kHandled, plan<Isa>); });

}  // namespace

detail::Implementations<detail::SparseLatentAttention> implementations(detail::SparseLatentAttention) { return kEntries; }

}  // namespace fovea::cpu
