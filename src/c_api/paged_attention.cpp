// SPDX-License-Identifier: Apache-2.0
#include "c_api/convert.hpp"
#include "c_api/handle.hpp"
#include "op/paged_attention/fields.hpp"
#include "op/paged_cache_append/fields.hpp"

namespace fovea::c_api {
namespace {

PagedAttentionDesc convert(const fovea_paged_attention_desc& from) { return convert_desc<detail::kPagedAttentionFields>(from); }
PagedAttentionArgs convert(const fovea_paged_attention_args& from) { return convert_args<detail::kPagedAttentionFields>(from); }

PagedCacheAppendDesc convert(const fovea_paged_cache_append_desc& from) { return convert_desc<detail::kPagedCacheAppendFields>(from); }
PagedCacheAppendArgs convert(const fovea_paged_cache_append_args& from) { return convert_args<detail::kPagedCacheAppendFields>(from); }

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
