// SPDX-License-Identifier: Apache-2.0
/// Token-sparse attention, flat and paged: every query token is a sequence of its own, whose keys are the tokens that it lists.
#include <numeric>

#include "gpu/cuda/sm90/implementations.hpp"
#include "gpu/cuda/sm90/latent_attention/launch_plan.hpp"
#include "op/sparse_latent_attention/problem.hpp"

namespace fovea::gpu::sm90::latent {
namespace {

using Args = SparseLatentAttentionArgs;
using Problem = detail::SparseLatentAttentionProblem;

constexpr std::string_view kName = "cuda.sm90.sparse_latent_attention";

/// The core of a problem whose sequences are its query tokens. The extra list begins at a key tile.
detail::AttentionCore core_of(const Problem& problem) {
  detail::AttentionCore core = problem;
  core.max_seq_k = problem.main.topk + (problem.extra ? kKeyTile + problem.extra->topk : 0);
  return core;
}

/// Kind of rows in both caches. An extra cache counts only if it lists keys.
Row rows_of(const Problem& problem) {
  const Row main = row_kind_of(problem.main.cache, problem.q_dtype);
  if (!problem.extra || problem.extra->topk == 0) return main;
  const Row extra = row_kind_of(problem.extra->cache, problem.q_dtype);
  if (extra == main) return main;
  return main == Row::v41 && extra == Row::fp4 ? Row::v41_and_fp4 : Row::any;
}

Call call_of(const Problem& problem) { return call_of(problem, rows_of(problem), 1); }

/// The unit of addresses in both caches.
std::int64_t unit_of(const Problem& problem) {
  const std::int64_t main = place_unit(problem.main.cache);
  return problem.extra ? std::gcd(main, place_unit(problem.extra->cache)) : main;
}

RowCache listed_cache(const detail::SparseSelection& selection, DType q_dtype, std::int64_t unit) {
  RowCache cache = row_cache(selection.cache, q_dtype, unit);
  cache.indices_batch = selection.batch_stride;
  cache.indices_row = selection.row_stride;
  cache.topk = static_cast<int>(selection.topk);
  return cache;
}

void set_pointers(RowCache& cache, const detail::SparseSelection& selection, const Args::Selection& args) {
  cache.data = static_cast<const std::byte*>(args.cache);
  cache.indices = args.indices;
  cache.lengths = selection.has_topk_length ? args.topk_length : nullptr;
}

LaunchPlan launch_of(const Problem& problem, Device device) {
  LaunchPlan launch(core_of(problem), device, call_of(problem), problem.total_q, 1);
  Params& params = launch.params;
  params.listed = true;
  params.length_per_row = problem.flat;
  const std::int64_t unit = unit_of(problem);
  params.unit = static_cast<std::uint32_t>(unit);
  params.main = listed_cache(problem.main, problem.q_dtype, unit);
  if (problem.extra) params.extra = listed_cache(*problem.extra, problem.q_dtype, unit);
  params.max_logits_strides = problem.max_logits;
  if (!problem.main.has_topk_length && !(problem.extra && problem.extra->has_topk_length)) {
    const int main = params.main.topk, extra = params.extra.topk;
    launch.fix_schedule(extra > 0 ? extra_list_begin(main) + extra : main);
  }
  return launch;
}

class State final : public LatentPlan<Problem, Args> {
 public:
  State(const Problem& problem, Device device) : LatentPlan(kName, problem, launch_of(problem, device)) {}

 private:
  Result<void> fill(Params& params, const Args& args) const override {
    params.max_logits = problem_.has_max_logits ? args.max_logits : nullptr;
    params.sink = problem_.has_sink ? args.sink : nullptr;
    set_pointers(params.main, problem_.main, args.main);
    if (problem_.extra) set_pointers(params.extra, *problem_.extra, args.extra);
    return {};
  }
};

detail::PlanResult<Args> plan(const Problem& problem, Device device) {
  if (auto reason = decline_device(device, kCapability, kCapability)) return *reason;
  if (Result<void> good = accept_core(core_of(problem), problem.total_q, problem.heads); !good) return good.error();
  const Load load = kTunings[tuning_index(call_of(problem))].load;
  if (Result<void> good = accept_cache("main.cache", problem.main.cache, load, unit_of(problem)); !good) return good.error();
  if (problem.extra) {
    if (Result<void> good = accept_cache("extra.cache", problem.extra->cache, load, unit_of(problem)); !good) return good.error();
  }
  return std::shared_ptr<const detail::PlanState<Args>>(std::make_shared<State>(problem, device));
}

constexpr detail::Implementation<detail::SparseLatentAttention> kRow{
    kName,
    "f16 and bf16 rows and every packed format, of 576 or 512; any heads, top-k and page, an extra cache, sinks, max_logits",
    detail::handles<detail::SparseLatentAttention>("flat", "main.topk_length", "extra", "extra.topk_length", "sink", "lse", "max_logits",
                                                   "options.batch_invariant"),
    Backend::cuda,
    unavailable<kCapability, kCapability>,
    plan};

}  // namespace
}  // namespace fovea::gpu::sm90::latent

namespace fovea::gpu::sm90 {

detail::Implementations<detail::SparseLatentAttention> implementations(detail::SparseLatentAttention) { return {&latent::kRow, 1}; }

}  // namespace fovea::gpu::sm90
