// SPDX-License-Identifier: Apache-2.0
/// Dense attention, forward, by the kernels of paged attention: a sequence's keys are one block, without a table.
#include <string>

#include "gpu/hip/cdna/implementations.hpp"
#include "gpu/hip/cdna/paged_attention/attend_plan.hpp"
#include "op/attention/problem.hpp"
#include "op/common/attention_core.hpp"

namespace fovea::gpu::cdna {
namespace attention {
namespace {

namespace kernels = cdna::paged_attention;
using Problem = detail::AttentionProblem;

constexpr std::string_view kName = "hip.cdna.attention";

Result<void> accept(const Problem& problem) {
  if (problem.q_dtype != DType::f16 && problem.q_dtype != DType::bf16)
    return detail::declined("q.dtype", name_of(problem.q_dtype), "f16 or bf16");
  if (auto reason = detail::decline_head_dims(problem)) return *reason;
  for (const auto& [name, count] :
       {std::pair{"q.shape (rows)", problem.total_q * problem.group()}, {"k.shape (rows)", problem.max_seq_k}, {"batch", problem.batch}}) {
    if (count >= kernels::kLimit) return detail::declined(name, count, "below 2^30");
  }
  if (problem.kv_heads > kernels::kMostKvHeads) return detail::declined("k.shape (kv_head)", problem.kv_heads, "at most 65535");
  return {};
}

constexpr detail::CacheStrides block_strides(const detail::RowStrides& strides) { return {strides.batch, strides.row, strides.head}; }

class State final : public kernels::AttendPlan<Problem, AttentionArgs> {
 public:
  State(const Problem& problem, Device device)
      : AttendPlan(kName, problem, device, {block_strides(problem.k), block_strides(problem.v), kernels::kLimit},
                   kernels::tuning_of(problem)) {}

 private:
  void point(kernels::Params& params, const AttentionArgs& args) const override {
    params.q = args.q;
    params.k_cache = args.k;
    params.v_cache = args.v;
    params.out = args.out;
    params.lse = problem_.has_lse ? args.lse : nullptr;
    params.sink = problem_.has_sink ? args.sink : nullptr;
    params.cu_seqlens_q = problem_.ragged ? args.cu_seqlens_q : nullptr;
    params.cu_seqlens_k = problem_.ragged ? args.cu_seqlens_k : nullptr;
  }
};

detail::PlanResult<AttentionArgs> plan(const Problem& problem, Device device) {
  if (auto reason = hip::decline_device(device)) return *reason;
  if (Result<void> good = accept(problem); !good) return good.error();
  return kernels::made_plan<State, AttentionArgs>(problem, device);
}

constexpr detail::Implementation<detail::Attention> kRow{
    kName,
    "f16, bf16; head dims that are multiples of 8 up to 256; any strides" FOVEA_HIP_STATUS,
    detail::handles<detail::Attention>(kScoreOptions, "ragged", "options.batch_invariant"),
    Backend::hip,
    hip::unavailable,
    plan};

}  // namespace
}  // namespace attention

detail::Implementations<detail::Attention> implementations(detail::Attention) { return {&attention::kRow, 1}; }

}  // namespace fovea::gpu::cdna
