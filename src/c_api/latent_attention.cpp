// SPDX-License-Identifier: Apache-2.0
#include "c_api/convert.hpp"
#include "c_api/handle.hpp"
#include "op/latent_attention/fields.hpp"

namespace fovea::c_api {
namespace {

LatentAttentionDesc convert(const fovea_latent_attention_desc& from) { return convert_desc<detail::kLatentAttentionFields>(from); }
LatentAttentionArgs convert(const fovea_latent_attention_args& from) { return convert_args<detail::kLatentAttentionFields>(from); }

SparseLatentAttentionDesc::Selection convert(const fovea_sparse_selection& from, const std::string& name) {
  return {latent_cache(from.cache, name + ".cache"), tensor(from.indices, name + ".indices"), from.has_topk_length != 0};
}

SparseLatentAttentionArgs::Selection convert(const fovea_sparse_selection_args& from) {
  return {from.cache, from.indices, from.topk_length};
}

SparseLatentAttentionDesc convert(const fovea_sparse_latent_attention_desc& from) {
  SparseLatentAttentionDesc desc{};
  desc.q = tensor(from.q, "q");
  desc.out = tensor(from.out, "out");
  desc.main = convert(from.main, "main");
  if (from.extra != nullptr) desc.extra = convert(*from.extra, "extra");
  desc.lse = optional_tensor(from.lse, "lse");
  desc.max_logits = optional_tensor(from.max_logits, "max_logits");
  desc.scale = from.scale;
  desc.has_sink = from.has_sink != 0;
  return desc;
}

SparseLatentAttentionArgs convert(const fovea_sparse_latent_attention_args& from) {
  return {.q = from.q,
          .out = from.out,
          .main = convert(from.main),
          .extra = convert(from.extra),
          .lse = from.lse,
          .max_logits = from.max_logits,
          .sink = from.sink};
}

LatentCacheConversionDesc convert(const fovea_latent_cache_conversion_desc& from) {
  return {.rows = tensor(from.rows, "rows"), .cache = latent_cache(from.cache, "cache"), .rule = scale_rule(from.rule)};
}

QuantizeLatentCacheArgs convert(const fovea_quantize_latent_cache_args& from) { return {from.rows, from.cache, from.slot_mapping}; }

DequantizeLatentCacheArgs convert(const fovea_dequantize_latent_cache_args& from) { return {from.rows, from.cache, from.slot_mapping}; }

}  // namespace

}  // namespace fovea::c_api

extern "C" {

using namespace fovea::c_api;

fovea_status fovea_latent_attention_plan(const fovea_latent_attention_desc* desc, const fovea_options* options, fovea_plan** plan) {
  return plan_into(desc, plan, [&] { return fovea::plan_latent_attention(convert(*desc), device(options), plan_options(options)); });
}

fovea_status fovea_latent_attention_run(const fovea_plan* plan, const fovea_latent_attention_args* args, void* workspace,
                                        size_t workspace_bytes, void* stream) {
  return with_plan<fovea::LatentAttentionPlan>(plan, args, [&](const fovea::LatentAttentionPlan& held) {
    return held.run(convert(*args), {workspace, workspace_bytes}, {stream});
  });
}

fovea_status fovea_latent_attention_prepare(const fovea_plan* plan, const fovea_latent_attention_args* args, void* workspace,
                                            size_t workspace_bytes, void* stream) {
  return with_plan<fovea::LatentAttentionPlan>(plan, args, [&](const fovea::LatentAttentionPlan& held) {
    return held.prepare(convert(*args), {workspace, workspace_bytes}, {stream});
  });
}

fovea_status fovea_latent_attention_run_prepared(const fovea_plan* plan, const fovea_latent_attention_args* args, void* workspace,
                                                 size_t workspace_bytes, void* stream) {
  return with_plan<fovea::LatentAttentionPlan>(plan, args, [&](const fovea::LatentAttentionPlan& held) {
    return held.run_prepared(convert(*args), {workspace, workspace_bytes}, {stream});
  });
}

fovea_status fovea_sparse_latent_attention_plan(const fovea_sparse_latent_attention_desc* desc, const fovea_options* options,
                                                fovea_plan** plan) {
  return plan_into(desc, plan, [&] { return fovea::plan_sparse_latent_attention(convert(*desc), device(options), plan_options(options)); });
}

fovea_status fovea_sparse_latent_attention_run(const fovea_plan* plan, const fovea_sparse_latent_attention_args* args, void* workspace,
                                               size_t workspace_bytes, void* stream) {
  return with_plan<fovea::SparseLatentAttentionPlan>(plan, args, [&](const fovea::SparseLatentAttentionPlan& held) {
    return held.run(convert(*args), {workspace, workspace_bytes}, {stream});
  });
}

fovea_status fovea_sparse_latent_attention_prepare(const fovea_plan* plan, const fovea_sparse_latent_attention_args* args, void* workspace,
                                                   size_t workspace_bytes, void* stream) {
  return with_plan<fovea::SparseLatentAttentionPlan>(plan, args, [&](const fovea::SparseLatentAttentionPlan& held) {
    return held.prepare(convert(*args), {workspace, workspace_bytes}, {stream});
  });
}

fovea_status fovea_sparse_latent_attention_run_prepared(const fovea_plan* plan, const fovea_sparse_latent_attention_args* args,
                                                        void* workspace, size_t workspace_bytes, void* stream) {
  return with_plan<fovea::SparseLatentAttentionPlan>(plan, args, [&](const fovea::SparseLatentAttentionPlan& held) {
    return held.run_prepared(convert(*args), {workspace, workspace_bytes}, {stream});
  });
}

fovea_status fovea_quantize_latent_cache_plan(const fovea_latent_cache_conversion_desc* desc, const fovea_options* options,
                                              fovea_plan** plan) {
  return plan_into(desc, plan, [&] { return fovea::plan_quantize_latent_cache(convert(*desc), device(options), plan_options(options)); });
}

fovea_status fovea_quantize_latent_cache_run(const fovea_plan* plan, const fovea_quantize_latent_cache_args* args, void* workspace,
                                             size_t workspace_bytes, void* stream) {
  return with_plan<fovea::QuantizeLatentCachePlan>(plan, args, [&](const fovea::QuantizeLatentCachePlan& held) {
    return held.run(convert(*args), {workspace, workspace_bytes}, {stream});
  });
}

fovea_status fovea_dequantize_latent_cache_plan(const fovea_latent_cache_conversion_desc* desc, const fovea_options* options,
                                                fovea_plan** plan) {
  return plan_into(desc, plan, [&] { return fovea::plan_dequantize_latent_cache(convert(*desc), device(options), plan_options(options)); });
}

fovea_status fovea_dequantize_latent_cache_run(const fovea_plan* plan, const fovea_dequantize_latent_cache_args* args, void* workspace,
                                               size_t workspace_bytes, void* stream) {
  return with_plan<fovea::DequantizeLatentCachePlan>(plan, args, [&](const fovea::DequantizeLatentCachePlan& held) {
    return held.run(convert(*args), {workspace, workspace_bytes}, {stream});
  });
}

}  // extern "C"
