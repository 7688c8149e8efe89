// SPDX-License-Identifier: Apache-2.0
#include "c_api/convert.hpp"
#include "c_api/handle.hpp"

namespace fovea::c_api {
namespace {

PagedAttentionDesc convert(const fovea_paged_attention_desc& from) {
  PagedAttentionDesc desc{};
  desc.q = tensor(from.q, "q");
  desc.k_cache = tensor(from.k_cache, "k_cache");
  desc.v_cache = tensor(from.v_cache, "v_cache");
  desc.block_table = tensor(from.block_table, "block_table");
  desc.out = tensor(from.out, "out");
  desc.lse = optional_tensor(from.lse, "lse");
  desc.max_seq_q = from.max_seq_q;
  desc.max_kv_len = from.max_kv_len;
  if (from.mask != nullptr) desc.mask = mask(*from.mask);
  desc.scale = from.scale;
  desc.softcap = from.softcap;
  desc.has_sink = from.has_sink != 0;
  desc.k_scale = optional_scale(from.k_scale);
  desc.v_scale = optional_scale(from.v_scale);
  return desc;
}

PagedAttentionArgs convert(const fovea_paged_attention_args& from) {
  return {.q = from.q,
          .k_cache = from.k_cache,
          .v_cache = from.v_cache,
          .out = from.out,
          .lse = from.lse,
          .sink = from.sink,
          .block_table = from.block_table,
          .cu_seqlens_q = from.cu_seqlens_q,
          .kv_len = from.kv_len,
          .k_scale = from.k_scale,
          .v_scale = from.v_scale};
}

PagedCacheAppendDesc convert(const fovea_paged_cache_append_desc& from) {
  PagedCacheAppendDesc desc{};
  desc.k = tensor(from.k, "k");
  desc.v = tensor(from.v, "v");
  desc.k_cache = tensor(from.k_cache, "k_cache");
  desc.v_cache = tensor(from.v_cache, "v_cache");
  desc.k_scale = optional_scale(from.k_scale);
  desc.v_scale = optional_scale(from.v_scale);
  return desc;
}

PagedCacheAppendArgs convert(const fovea_paged_cache_append_args& from) {
  return {.k = from.k,
          .v = from.v,
          .k_cache = from.k_cache,
          .v_cache = from.v_cache,
          .slot_mapping = from.slot_mapping,
          .k_scale = from.k_scale,
          .v_scale = from.v_scale};
}

}  // namespace
}  // namespace fovea::c_api

extern "C" {

using namespace fovea::c_api;

fovea_status fovea_paged_attention_plan(const fovea_paged_attention_desc* desc, const fovea_options* options, fovea_plan** plan) {
  return plan_into(desc, plan, [&] { return fovea::plan_paged_attention(convert(*desc), device(options), plan_options(options)); });
}

fovea_status fovea_paged_attention_run(const fovea_plan* plan, const fovea_paged_attention_args* args, void* workspace,
                                       size_t workspace_bytes, void* stream) {
  return with_plan<fovea::PagedAttentionPlan>(plan, args, [&](const fovea::PagedAttentionPlan& held) {
    return held.run(convert(*args), {workspace, workspace_bytes}, {stream});
  });
}

fovea_status fovea_paged_attention_prepare(const fovea_plan* plan, const fovea_paged_attention_args* args, void* workspace,
                                           size_t workspace_bytes, void* stream) {
  return with_plan<fovea::PagedAttentionPlan>(plan, args, [&](const fovea::PagedAttentionPlan& held) {
    return held.prepare(convert(*args), {workspace, workspace_bytes}, {stream});
  });
}

fovea_status fovea_paged_attention_run_prepared(const fovea_plan* plan, const fovea_paged_attention_args* args, void* workspace,
                                                size_t workspace_bytes, void* stream) {
  return with_plan<fovea::PagedAttentionPlan>(plan, args, [&](const fovea::PagedAttentionPlan& held) {
    return held.run_prepared(convert(*args), {workspace, workspace_bytes}, {stream});
  });
}

fovea_status fovea_paged_cache_append_plan(const fovea_paged_cache_append_desc* desc, const fovea_options* options, fovea_plan** plan) {
  return plan_into(desc, plan, [&] { return fovea::plan_paged_cache_append(convert(*desc), device(options), plan_options(options)); });
}

fovea_status fovea_paged_cache_append_run(const fovea_plan* plan, const fovea_paged_cache_append_args* args, void* workspace,
                                          size_t workspace_bytes, void* stream) {
  return with_plan<fovea::PagedCacheAppendPlan>(plan, args, [&](const fovea::PagedCacheAppendPlan& held) {
    return held.run(convert(*args), {workspace, workspace_bytes}, {stream});
  });
}

}  // extern "C"
