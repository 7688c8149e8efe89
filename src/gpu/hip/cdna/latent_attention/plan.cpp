// SPDX-License-Identifier: Apache-2.0
/// Latent attention as paged attention whose values are the first 512 columns of the keys, of plain rows or of packed ones.
#include <string>
#include <utility>

#include "gpu/hip/cdna/implementations.hpp"
#include "gpu/hip/cdna/latent_attention/packed/tuning.hpp"
#include "gpu/hip/cdna/latent_attention/tuning.hpp"
#include "gpu/hip/cdna/paged_attention/attend_plan.hpp"
#include "op/latent_attention/problem.hpp"

namespace fovea::gpu::cdna {
namespace latent_attention {
namespace {

namespace kernels = paged_attention;
using Problem = detail::LatentAttentionProblem;

constexpr std::string_view kName = "hip.cdna.latent_attention";

Result<void> accept(const Problem& problem) {
  if (problem.q_dtype != DType::f16 && problem.q_dtype != DType::bf16)
    return detail::declined("q.dtype", name_of(problem.q_dtype), "f16 or bf16");
  const detail::LatentCacheView& cache = problem.cache;
  if (cache.format != CacheFormat::rows && cache.format != CacheFormat::v32_fp8)
    return detail::declined("cache.format", name_of(cache.format), "rows or v32_fp8");
  for (const auto& [name, count] : {std::pair{"q.shape (rows)", problem.total_q * problem.group()},
                                    {"max_kv_len", problem.max_seq_k},
                                    {"cache.rows.shape (page)", cache.page},
                                    {"batch", problem.batch}}) {
    if (count >= kernels::kLimit) return detail::declined(name, count, "below 2^30");
  }
  if (problem.kv_heads > kernels::kMostKvHeads) return detail::declined("cache.rows.shape (kv_head)", problem.kv_heads, "at most 65535");
  return {};
}

kernels::CacheShape shape_of(const Problem& problem) {
  const detail::LatentCacheView& cache = problem.cache;
  if (cache.format == CacheFormat::rows) return {cache.strides, cache.strides, cache.page, size_of(cache.dtype)};
  const detail::CacheStrides bytes{.block = cache.block_stride, .token = packed_format(cache.format)->bytes()};
  return {bytes, bytes, cache.page, 1};
}

const Named<Tuning>& tuning_of(const Problem& problem) {
  const bool prefill = kernels::is_prefill(problem);
  return problem.cache.format == CacheFormat::rows ? kTunings[tuning_index(problem.head_dim_qk, prefill)]
                                                   : packed::kTunings[prefill ? 1 : 0];
}

class State final : public kernels::AttendPlan<Problem, LatentAttentionArgs> {
 public:
  State(const Problem& problem, Device device) : AttendPlan(kName, problem, device, shape_of(problem), tuning_of(problem)) {
    params_.table_stride = problem.table_stride;
  }

 private:
  void point(kernels::Params& params, const LatentAttentionArgs& args) const override {
    params.q = args.q;
    params.k_cache = params.v_cache = args.cache;
    params.out = args.out;
    params.lse = problem_.has_lse ? args.lse : nullptr;
    params.k_scale = params.v_scale = problem_.has_scale ? args.cache_scale : nullptr;
    params.block_table = args.block_table;
    params.cu_seqlens_q = problem_.ragged ? args.cu_seqlens_q : nullptr;
    params.kv_len = args.kv_len;
  }
};

detail::PlanResult<LatentAttentionArgs> plan(const Problem& problem, Device device) {
  if (auto reason = hip::decline_device(device)) return *reason;
  if (Result<void> good = accept(problem); !good) return good.error();
  return kernels::made_plan<State, LatentAttentionArgs>(problem, device);
}

constexpr detail::Implementation<detail::LatentAttention> kRow{
    kName,
    "f16, bf16 queries over rows of their dtype or e4m3, of 576 or 512, or v32_fp8; any heads, query length, page and "
    "strides" FOVEA_HIP_STATUS,
    detail::handles<detail::LatentAttention>("ragged", "mask.left", "mask.right", "lse", "cache_scale", "options.batch_invariant"),
    Backend::hip,
    hip::unavailable,
    plan};

}  // namespace
}  // namespace latent_attention

detail::Implementations<detail::LatentAttention> implementations(detail::LatentAttention) { return {&latent_attention::kRow, 1}; }

}  // namespace fovea::gpu::cdna
