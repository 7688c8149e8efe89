// SPDX-License-Identifier: Apache-2.0
#include "c_api/convert.hpp"
#include "c_api/handle.hpp"

namespace fovea::c_api {

AttentionDesc convert(const fovea_attention_desc& from) {
  AttentionDesc desc{};
  desc.q = tensor(from.q, "q");
  desc.k = tensor(from.k, "k");
  desc.v = tensor(from.v, "v");
  desc.out = tensor(from.out, "out");
  desc.lse = optional_tensor(from.lse, "lse");
  if (from.ragged != nullptr) desc.ragged = RaggedDesc{from.ragged->batch, from.ragged->max_seq_q, from.ragged->max_seq_k};
  if (from.mask != nullptr) desc.mask = mask(*from.mask);
  desc.scale = from.scale;
  desc.softcap = from.softcap;
  desc.has_sink = from.has_sink != 0;
  desc.q_scale = optional_scale(from.q_scale);
  desc.k_scale = optional_scale(from.k_scale);
  desc.v_scale = optional_scale(from.v_scale);
  return desc;
}

AttentionArgs convert(const fovea_attention_args& from) {
  return {.q = from.q,
          .k = from.k,
          .v = from.v,
          .out = from.out,
          .lse = from.lse,
          .sink = from.sink,
          .cu_seqlens_q = from.cu_seqlens_q,
          .cu_seqlens_k = from.cu_seqlens_k,
          .q_scale = from.q_scale,
          .k_scale = from.k_scale,
          .v_scale = from.v_scale};
}

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

}  // extern "C"
