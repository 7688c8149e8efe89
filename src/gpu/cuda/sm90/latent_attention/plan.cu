// SPDX-License-Identifier: Apache-2.0
/// Dense attention over a block table: accepts or declines, and launches.
#include "gpu/cuda/sm90/implementations.hpp"
#include "gpu/cuda/sm90/latent_attention/launch_plan.hpp"
#include "gpu/tensor_map.hpp"
#include "op/latent_attention/problem.hpp"

namespace fovea::gpu::sm90::latent {
namespace {

using Problem = detail::LatentAttentionProblem;

constexpr std::string_view kName = "cuda.sm90.latent_attention";

Call call_of(const Problem& problem) {
  Call call = call_of(problem, row_kind_of(problem.cache, problem.q_dtype), problem.max_seq_q);
  const detail::CacheStrides& strides = problem.cache.strides;
  call.tma = problem.cache.page % kBoxRows == 0 && tma_reaches({strides.block, strides.token, strides.head}, 2);
  call.edges = problem.max_seq_q > 1 && problem.group() % kQueryTile != 0;
  return call;
}

/// Boxes of eight keys: columns [0, 256) and the rest.
Result<void> encode_keys(Params& params, const Problem& problem, const void* data) {
  const detail::LatentCacheView& cache = problem.cache;
  const std::int64_t slices = problem.head_dim_qk / kSlice;
  TensorMapDesc keys{.dtype = problem.kv_dtype, .rank = 5};
  keys.dimensions = {{{kSlice, 1, kSlice},
                      {cache.page, cache.strides.token, kBoxRows},
                      {slices, kSlice, kHalfSlices},
                      {cache.kv_heads, std::max<std::int64_t>(cache.strides.head, 8), 1},  // of extent 1, any stride will do
                      {std::max<std::int64_t>(cache.blocks, 1), cache.strides.block, 1}}};
  if (Result<void> good = encode(params.left, data, keys); !good) return good;
  keys.dimensions[2].box = static_cast<int>(slices) - kHalfSlices;
  return encode(params.right, data, keys);
}

LaunchPlan launch_of(const Problem& problem, Device device) {
  LaunchPlan launch(problem, device, call_of(problem), problem.batch, problem.max_seq_q);
  launch.ragged = problem.ragged;
  launch.params.table_stride = problem.table_stride;
  const std::int64_t unit = place_unit(problem.cache);
  launch.params.unit = static_cast<std::uint32_t>(unit);
  launch.params.main = row_cache(problem.cache, problem.q_dtype, unit);
  return launch;
}

class State final : public LatentPlan<Problem, LatentAttentionArgs> {
 public:
  State(const Problem& problem, Device device) : LatentPlan(kName, problem, launch_of(problem, device)) {}

 private:
  Result<void> fill(Params& params, const LatentAttentionArgs& args) const override {
    params.block_table = args.block_table;
    params.kv_len = args.kv_len;
    params.cu_seqlens_q = problem_.ragged ? args.cu_seqlens_q : nullptr;
    params.main.data = static_cast<const std::byte*>(args.cache);
    params.cache_scale = problem_.has_scale ? args.cache_scale : nullptr;
    if (launch_.tuning.load != Load::tma) return {};
    return encode_keys(params, problem_, problem_.cache.blocks > 0 ? args.cache : args.q);  // a cache without blocks has no memory
  }
};

detail::PlanResult<LatentAttentionArgs> plan(const Problem& problem, Device device) {
  if (auto reason = decline_device(device, kCapability, kCapability)) return *reason;
  if (Result<void> good = accept_core(problem, problem.batch, problem.max_seq_q * problem.group()); !good) return good.error();
  const Load load = kTunings[tuning_index(call_of(problem))].load;
  if (Result<void> good = accept_cache("cache", problem.cache, load, place_unit(problem.cache)); !good) return good.error();
  return std::shared_ptr<const detail::PlanState<LatentAttentionArgs>>(std::make_shared<State>(problem, device));
}

constexpr detail::Implementation<detail::LatentAttention> kRow{
    kName,
    "f16 and bf16 over rows of their own, e4m3 or packed, of 576 or 512; any heads, query length and page",
    detail::handles<detail::LatentAttention>("ragged", "mask.left", "mask.right", "lse", "cache_scale", "options.batch_invariant"),
    Backend::cuda,
    unavailable<kCapability, kCapability>,
    plan};

}  // namespace
}  // namespace fovea::gpu::sm90::latent

namespace fovea::gpu::sm90 {

detail::Implementations<detail::LatentAttention> implementations(detail::LatentAttention) { return {&latent::kRow, 1}; }

}  // namespace fovea::gpu::sm90
