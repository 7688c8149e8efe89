// SPDX-License-Identifier: Apache-2.0
/// Dense latent attention over a block table: accepts or declines, and launches.
#include <memory>
#include <utility>

#include "gpu/cuda/portable/implementations.hpp"
#include "gpu/cuda/portable/latent_attention/launch_plan.hpp"
#include "op/latent_attention/problem.hpp"

namespace fovea::gpu::portable {
namespace latent_attention {
namespace {

using Problem = detail::LatentAttentionProblem;

constexpr std::string_view kName = "cuda.portable.latent_attention";

LaunchPlan launch_of(const Problem& problem, Device device) {
  const RowCache cache = row_cache(problem.cache, problem.q_dtype);
  LaunchPlan launch(problem, device, problem.batch, problem.max_seq_q, coded_row_of(cache.format, cache.format));
  launch.params.main = cache;
  launch.params.table_stride = problem.table_stride;
  return launch;
}

class State final : public LatentPlan<Problem, LatentAttentionArgs> {
 public:
  State(const Problem& problem, LaunchPlan launch) : LatentPlan(kName, problem, std::move(launch)) {}

 private:
  void fill(Params& params, const LatentAttentionArgs& args) const override {
    params.main.data = static_cast<const std::byte*>(args.cache);
    params.block_table = args.block_table;
    params.cu_seqlens_q = problem_.ragged ? args.cu_seqlens_q : nullptr;
    params.kv_len = args.kv_len;
    params.cache_scale = problem_.has_scale ? args.cache_scale : nullptr;
  }
};

detail::PlanResult<LatentAttentionArgs> plan(const Problem& problem, Device device) {
  if (auto reason = decline_device(device, kLowestCapability, kAnyLater)) return *reason;
  LaunchPlan launch = launch_of(problem, device);
  if (Result<void> good = accept_core(problem, launch); !good) return good.error();
  if (Result<void> good = accept_cache("cache", problem.cache, launch.params.coded_row); !good) return good.error();
  return std::shared_ptr<const detail::PlanState<LatentAttentionArgs>>(std::make_shared<State>(problem, std::move(launch)));
}

constexpr detail::Implementation<detail::LatentAttention> kRow{
    kName,
    "f16 and bf16 (from compute capability 8.0 on) over rows of their own, e4m3 or packed, of 576 or 512; any heads, query length and page",
    detail::handles<detail::LatentAttention>("ragged", "mask.left", "mask.right", "lse", "cache_scale", "options.batch_invariant"),
    Backend::cuda,
    unavailable<kLowestCapability, kAnyLater>,
    plan};

}  // namespace
}  // namespace latent_attention

detail::Implementations<detail::LatentAttention> implementations(detail::LatentAttention) { return {&latent_attention::kRow, 1}; }

}  // namespace fovea::gpu::portable
