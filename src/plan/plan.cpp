// SPDX-License-Identifier: Apache-2.0
/// The public planning functions: they validate once, then ask the ordered list.
#include "plan/select.hpp"

namespace fovea {
namespace {

template <class Operation>
Result<Plan<typename Operation::Args>> plan(const Result<typename Operation::Problem>& problem, Device device, const PlanOptions& options) {
  if (!problem && problem.error().code == ErrorCode::unsupported)
    return detail::declined_by_all<Operation>(problem.error().message, options);
  if (!problem) return problem.error();
  return detail::select<Operation>(*problem, device, options);
}

}  // namespace

Result<AttentionPlan> plan_attention(const AttentionDesc& desc, Device device, const PlanOptions& options) {
  return plan<detail::Attention>(detail::validate(desc, options), device, options);
}

Result<AttentionBackwardPlan> plan_attention_backward(const AttentionBackwardDesc& desc, Device device, const PlanOptions& options) {
  return plan<detail::AttentionBackward>(detail::validate(desc, options), device, options);
}

Result<PagedAttentionPlan> plan_paged_attention(const PagedAttentionDesc& desc, Device device, const PlanOptions& options) {
  return plan<detail::PagedAttention>(detail::validate(desc, options), device, options);
}

Result<PagedCacheAppendPlan> plan_paged_cache_append(const PagedCacheAppendDesc& desc, Device device, const PlanOptions& options) {
  return plan<detail::PagedCacheAppend>(detail::validate(desc, options), device, options);
}

Result<MergeStatesPlan> plan_merge_states(const MergeStatesDesc& desc, Device device, const PlanOptions& options) {
  return plan<detail::MergeStates>(detail::validate(desc, options), device, options);
}

Result<LatentAttentionPlan> plan_latent_attention(const LatentAttentionDesc& desc, Device device, const PlanOptions& options) {
  return plan<detail::LatentAttention>(detail::validate(desc, options), device, options);
}

Result<SparseLatentAttentionPlan> plan_sparse_latent_attention(const SparseLatentAttentionDesc& desc, Device device,
                                                               const PlanOptions& options) {
  return plan<detail::SparseLatentAttention>(detail::validate(desc, options), device, options);
}

Result<QuantizeLatentCachePlan> plan_quantize_latent_cache(const LatentCacheConversionDesc& desc, Device device,
                                                           const PlanOptions& options) {
  return plan<detail::QuantizeLatentCache>(detail::validate_quantize(desc), device, options);
}

Result<DequantizeLatentCachePlan> plan_dequantize_latent_cache(const LatentCacheConversionDesc& desc, Device device,
                                                               const PlanOptions& options) {
  return plan<detail::DequantizeLatentCache>(detail::validate_dequantize(desc), device, options);
}

Result<IndexLogitsPlan> plan_index_logits(const IndexLogitsDesc& desc, Device device, const PlanOptions& options) {
  return plan<detail::IndexLogits>(detail::validate(desc, options), device, options);
}

Result<TopkRowsPlan> plan_topk_rows(const TopkRowsDesc& desc, Device device, const PlanOptions& options) {
  return plan<detail::TopkRows>(detail::validate(desc, options), device, options);
}

Result<QuantizeQkInt8Plan> plan_quantize_qk_int8(const QuantizeQkInt8Desc& desc, Device device, const PlanOptions& options) {
  return plan<detail::QuantizeQkInt8>(detail::validate(desc, options), device, options);
}

Result<QuantizeVPlan> plan_quantize_v(const QuantizeVDesc& desc, Device device, const PlanOptions& options) {
  return plan<detail::QuantizeV>(detail::validate(desc, options), device, options);
}

Result<QuantizedAttentionPlan> plan_quantized_attention(const QuantizedAttentionDesc& desc, Device device, const PlanOptions& options) {
  return plan<detail::QuantizedAttention>(detail::validate(desc, options), device, options);
}

Result<QuantizeAndAttendPlan> plan_quantize_and_attend(const QuantizeAndAttendDesc& desc, Device device, const PlanOptions& options) {
  return plan<detail::QuantizeAndAttend>(detail::validate(desc, options), device, options);
}

}  // namespace fovea
