// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "gpu/hip/cdna/implementations.hpp"
#include "gpu/hip/cdna/paged_attention/attend_plan.hpp"
#include "op/paged_attention/problem.hpp"

namespace fovea::gpu::cdna {
namespace paged_attention {
namespace {

using Problem = detail::PagedAttentionProblem;

constexpr std::string_view kName = "hip.cdna.paged_attention";

Result<void> accept(const Problem& problem) {
  if (problem.q_dtype != DType::f16 && problem.q_dtype != DType::bf16)
    return detail::declined("q.dtype", name_of(problem.q_dtype), "f16 or bf16");
  for (const auto& [name, dim] : {std::pair{"q.shape (head_dim)", problem.head_dim_qk}, {"v_cache.shape (head_dim)", problem.head_dim_v}}) {
    if (dim > kMostHeadDim) return detail::declined(name, dim, "at most " + std::to_string(kMostHeadDim));
    if (dim % 8 != 0) return detail::declined(name, dim, "a multiple of 8");
  }
  for (const auto& [name, count] : {std::pair{"q.shape (rows)", problem.total_q * problem.group()},
                                    {"max_kv_len", problem.max_seq_k},
                                    {"k_cache.shape (page)", problem.page},
                                    {"batch", problem.batch}}) {
    if (count >= kLimit) return detail::declined(name, count, "below 2^30");
  }
  if (problem.kv_heads > kMostKvHeads) return detail::declined("k_cache.shape (kv_head)", problem.kv_heads, "at most 65535");
  return {};
}

class State final : public AttendPlan<Problem, PagedAttentionArgs> {
 public:
  State(const Problem& problem, Device device)
      : AttendPlan(kName, problem, device, {problem.k, problem.v, problem.page, size_of(problem.kv_dtype)}, tuning_of(problem)) {
    params_.table_stride = problem.table_stride;
    if (problem.k_scale) params_.k_scale_stride = problem.k_scale->head_stride;
    if (problem.v_scale) params_.v_scale_stride = problem.v_scale->head_stride;
  }

 private:
  void point(Params& params, const PagedAttentionArgs& args) const override {
    params.q = args.q;
    params.k_cache = args.k_cache;
    params.v_cache = args.v_cache;
    params.out = args.out;
    params.lse = problem_.has_lse ? args.lse : nullptr;
    params.sink = problem_.has_sink ? args.sink : nullptr;
    params.k_scale = problem_.k_scale ? args.k_scale : nullptr;
    params.v_scale = problem_.v_scale ? args.v_scale : nullptr;
    params.block_table = args.block_table;
    params.cu_seqlens_q = args.cu_seqlens_q;
    params.kv_len = args.kv_len;
  }
};

detail::PlanResult<PagedAttentionArgs> plan(const Problem& problem, Device device) {
  if (auto reason = hip::decline_device(device)) return *reason;
  if (Result<void> good = accept(problem); !good) return good.error();
  return made_plan<State, PagedAttentionArgs>(problem, device);
}

constexpr detail::Implementation<detail::PagedAttention> kRow{
    kName,
    "f16, bf16 queries on caches of their dtype or e4m3; head dims that are multiples of 8 up to 256; any page and "
    "strides" FOVEA_HIP_STATUS,
    detail::handles<detail::PagedAttention>(kScoreOptions, "k_scale", "v_scale", "options.batch_invariant"),
    Backend::hip,
    hip::unavailable,
    plan};

}  // namespace
}  // namespace paged_attention

detail::Implementations<detail::PagedAttention> implementations(detail::PagedAttention) { return {&paged_attention::kRow, 1}; }

}  // namespace fovea::gpu::cdna
