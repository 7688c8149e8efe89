// SPDX-License-Identifier: Apache-2.0
/// Token-sparse attention, flat and paged: every query token is a sequence of its own, whose keys are the tokens that it lists.
#include <algorithm>
#include <memory>
#include <utility>

#include "gpu/cuda/portable/implementations.hpp"
#include "gpu/cuda/portable/latent_attention/launch_plan.hpp"
#include "gpu/cuda/portable/paged_attention/tuning.hpp"
#include "op/sparse_latent_attention/problem.hpp"

namespace fovea::gpu::portable {
namespace latent_attention {
namespace {

using Args = SparseLatentAttentionArgs;
using Problem = detail::SparseLatentAttentionProblem;

constexpr std::string_view kName = "cuda.portable.sparse_latent_attention";

/// The core of a problem whose sequences are its query tokens.
detail::AttentionCore core_of(const Problem& problem) {
  detail::AttentionCore core = problem;
  core.mask = {};
  core.max_seq_k = problem.main.topk + (problem.extra ? problem.extra->topk : 0);
  return core;
}

RowCache listed_cache(const detail::SparseSelection& selection, DType q_dtype) {
  RowCache cache = row_cache(selection.cache, q_dtype);
  cache.list = {.batch_stride = selection.batch_stride, .token_stride = selection.row_stride, .topk = static_cast<int>(selection.topk)};
  return cache;
}

/// Only an extra cache that lists tokens counts.
bool has_extra(const Problem& problem) { return problem.extra && problem.extra->topk > 0; }

LaunchPlan launch_of(const Problem& problem, Device device) {
  const RowCache main = listed_cache(problem.main, problem.q_dtype);
  const RowCache extra = has_extra(problem) ? listed_cache(*problem.extra, problem.q_dtype) : RowCache{};
  const int coded_row = coded_row_of(main.format, has_extra(problem) ? extra.format : main.format);
  LaunchPlan launch(core_of(problem), device, problem.total_q, 1, coded_row);
  Params& params = launch.params;
  params.listed = true;
  params.length_per_token = problem.flat;
  params.tokens = divmod_by(problem.max_seq_q);
  params.main = main;
  params.extra = extra;
  params.max_logits_strides = problem.max_logits;
  return launch;
}

void set_pointers(RowCache& cache, const detail::SparseSelection& selection, const Args::Selection& args) {
  cache.data = static_cast<const std::byte*>(args.cache);
  cache.list.indices = args.indices;
  cache.list.lengths = selection.has_topk_length ? args.topk_length : nullptr;
}

class State final : public LatentPlan<Problem, Args> {
 public:
  State(const Problem& problem, LaunchPlan launch) : LatentPlan(kName, problem, std::move(launch)) {}

 private:
  void fill(Params& params, const Args& args) const override {
    params.max_logits = problem_.has_max_logits ? args.max_logits : nullptr;
    params.sink = problem_.has_sink ? args.sink : nullptr;
    set_pointers(params.main, problem_.main, args.main);
    if (has_extra(problem_)) set_pointers(params.extra, *problem_.extra, args.extra);
  }
};

Result<void> accept(const Problem& problem, const LaunchPlan& launch) {
  const Params& params = launch.params;
  if (Result<void> good = accept_core(core_of(problem), launch); !good) return good;
  if (Result<void> good = accept_cache("main.cache", problem.main.cache, params.coded_row); !good) return good;
  return has_extra(problem) ? accept_cache("extra.cache", problem.extra->cache, params.coded_row) : Result<void>();
}

detail::PlanResult<Args> plan(const Problem& problem, Device device) {
  if (auto reason = decline_device(device, kLowestCapability, kAnyLater)) return *reason;
  LaunchPlan launch = launch_of(problem, device);
  if (Result<void> good = accept(problem, launch); !good) return good.error();
  return std::shared_ptr<const detail::PlanState<Args>>(std::make_shared<State>(problem, std::move(launch)));
}

constexpr detail::Implementation<detail::SparseLatentAttention> kRow{
    kName,
    "f16 and bf16 (from compute capability 8.0 on) rows and every packed format, of 576 or 512; any heads, top-k and page, an extra cache",
    detail::handles<detail::SparseLatentAttention>("flat", "main.topk_length", "extra", "extra.topk_length", "sink", "lse", "max_logits",
                                                   "options.batch_invariant"),
    Backend::cuda,
    unavailable<kLowestCapability, kAnyLater>,
    plan};

}  // namespace
}  // namespace latent_attention

detail::Implementations<detail::SparseLatentAttention> implementations(detail::SparseLatentAttention) {
  return {&latent_attention::kRow, 1};
}

}  // namespace fovea::gpu::portable
