// SPDX-License-Identifier: Apache-2.0
#include "c_api/convert.hpp"
#include "c_api/handle.hpp"
#include "op/attention/fields.hpp"
#include "op/attention_backward/fields.hpp"

namespace fovea::c_api {

AttentionDesc convert(const fovea_attention_desc& from) { return convert_desc<detail::kAttentionFields>(from); }
AttentionArgs convert(const fovea_attention_args& from) { return convert_args<detail::kAttentionFields>(from); }

namespace {

AttentionBackwardDesc convert(const fovea_attention_backward_desc& from) {
  AttentionBackwardDesc desc = convert_desc<detail::kAttentionBackwardFields>(from);
  desc.forward = c_api::convert(from.forward);
  return desc;
}

AttentionBackwardArgs convert(const fovea_attention_backward_args& from) {
  AttentionBackwardArgs args = convert_args<detail::kAttentionBackwardFields>(from);
  args.forward = c_api::convert(from.forward);
  return args;
}

}  // namespace

}  // namespace fovea::c_api

extern "C" {

using namespace fovea::c_api;

fovea_status fovea_attention_plan(const fovea_attention_desc* desc, const fovea_options* options, fovea_plan** plan) {
  return plan_into(desc, plan, [&] { return fovea::plan_attention(convert(*desc), device(options), plan_options(options)); });
}

fovea_status fovea_attention_run(const fovea_plan* plan, const fovea_attention_args* args, void* workspace, size_t workspace_bytes,
                                 void* stream) {
  return with_plan<fovea::AttentionPlan>(plan, args, [&](const fovea::AttentionPlan& held) {
    return held.run(convert(*args), {workspace, workspace_bytes}, {stream});
  });
}

fovea_status fovea_attention_prepare(const fovea_plan* plan, const fovea_attention_args* args, void* workspace, size_t workspace_bytes,
                                     void* stream) {
  return with_plan<fovea::AttentionPlan>(plan, args, [&](const fovea::AttentionPlan& held) {
    return held.prepare(convert(*args), {workspace, workspace_bytes}, {stream});
  });
}

fovea_status fovea_attention_run_prepared(const fovea_plan* plan, const fovea_attention_args* args, void* workspace, size_t workspace_bytes,
                                          void* stream) {
  return with_plan<fovea::AttentionPlan>(plan, args, [&](const fovea::AttentionPlan& held) {
    return held.run_prepared(convert(*args), {workspace, workspace_bytes}, {stream});
  });
}

fovea_status fovea_attention_backward_plan(const fovea_attention_backward_desc* desc, const fovea_options* options, fovea_plan** plan) {
  return plan_into(desc, plan, [&] { return fovea::plan_attention_backward(convert(*desc), device(options), plan_options(options)); });
}

fovea_status fovea_attention_backward_run(const fovea_plan* plan, const fovea_attention_backward_args* args, void* workspace,
                                          size_t workspace_bytes, void* stream) {
  return with_plan<fovea::AttentionBackwardPlan>(plan, args, [&](const fovea::AttentionBackwardPlan& held) {
    return held.run(convert(*args), {workspace, workspace_bytes}, {stream});
  });
}

}  // extern "C"
