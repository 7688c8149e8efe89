// SPDX-License-Identifier: Apache-2.0
/// Dense attention over a block table: accepts or declines, and launches.
#include "gpu/cuda/sm90/implementations.hpp"
#include "gpu/cuda/sm90/latent_attention/recipe.hpp"
#include "gpu/tensor_map.hpp"
#include "op/latent_attention/validate.hpp"

namespace fovea::gpu::sm90::latent {
namespace {

using Problem = detail::LatentAttentionProblem;

constexpr std::string_view kName = "cuda.sm90.latent_attention";

Load load_of(const Problem& problem) {
  if (!is_plain(problem.cache, problem.q_dtype)) return Load::codes;
  return problem.cache.page % kBoxRows == 0 ? Load::boxes : Load::rows;
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

class State final : public detail::PlanState<LatentAttentionArgs> {
 public:
  State(const Problem& problem, Device device)
      : problem_(problem), recipe_(problem, device, load_of(problem), problem.batch, problem.max_seq_q) {
    implementation = kName;
    recipe_.params.table_stride = problem.table_stride;
    recipe_.params.main = row_cache(problem.cache, problem.q_dtype);
    if (problem.total_q > 0) workspace_bytes = recipe_.workspace_bytes();
  }

  Result<void> prepare(const LatentAttentionArgs& args, Workspace workspace, Stream stream) const override {
    return with_params(args, workspace, [&](const Params& params) { return launch_schedule(params, stream); });
  }

  Result<void> run(const LatentAttentionArgs& args, Workspace workspace, Stream stream, bool prepared) const override {
    return with_params(args, workspace, [&](const Params& params) { return recipe_.run(params, stream, prepared); });
  }

  std::string tuning() const override { return recipe_.tuning(); }

 private:
  template <class Run>
  Result<void> with_params(const LatentAttentionArgs& args, Workspace workspace, Run&& run) const {
    if (Result<void> good = check_args(problem_, args); !good) return good;
    if (Result<void> good = detail::check_workspace(workspace, workspace_bytes); !good) return good;
    if (problem_.total_q == 0 || problem_.batch == 0) return {};
    const ScopedDevice device(recipe_.device.ordinal);
    if (!device.status()) return device.status();
    Params params = recipe_.params_in(workspace);
    params.q = args.q;
    params.out = args.out;
    params.lse = problem_.has_lse ? args.lse : nullptr;
    params.block_table = args.block_table;
    params.kv_len = args.kv_len;
    params.cu_seqlens_q = problem_.ragged ? args.cu_seqlens_q : nullptr;
    params.main.data = static_cast<const std::byte*>(args.cache);
    params.cache_scale = problem_.has_scale ? args.cache_scale : nullptr;
    if (recipe_.load == Load::boxes) {
      if (Result<void> good = encode_keys(params, problem_, args.cache); !good) return good;
    }
    if (Result<void> good = encode_queries(params, problem_, problem_.ragged, args.q); !good) return good;
    return run(params);
  }

  Problem problem_;
  Recipe recipe_;
};

detail::PlanResult<LatentAttentionArgs> plan(const Problem& problem, Device device) {
  if (auto reason = decline_device(device, kCapability, kCapability)) return *reason;
  if (Result<void> good = accept_core(problem, problem.batch, problem.max_seq_q * problem.group()); !good) return good.error();
  if (Result<void> good = accept_cache("cache", problem.cache, load_of(problem)); !good) return good.error();
  return std::shared_ptr<const detail::PlanState<LatentAttentionArgs>>(std::make_shared<State>(problem, device));
}

constexpr detail::Implementation<detail::LatentAttention> kRow{
    kName, "f16 and bf16 over rows of their own, e4m3 or packed, of 576 or 512; any heads, query length and page", Backend::cuda,
    unavailable<kCapability, kCapability>, plan};

}  // namespace
}  // namespace fovea::gpu::sm90::latent

namespace fovea::gpu::sm90 {

detail::Implementations<detail::LatentAttention> implementations(detail::LatentAttention) { return {&latent::kRow, 1}; }

}  // namespace fovea::gpu::sm90
