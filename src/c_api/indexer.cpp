// SPDX-License-Identifier: Apache-2.0
#include "c_api/convert.hpp"
#include "c_api/handle.hpp"
#include "op/index_logits/fields.hpp"
#include "op/topk_rows/fields.hpp"

namespace fovea::c_api {
namespace {

IndexLogitsDesc convert(const fovea_index_logits_desc& from) { return convert_desc<detail::kIndexLogitsFields>(from); }
IndexLogitsArgs convert(const fovea_index_logits_args& from) { return convert_args<detail::kIndexLogitsFields>(from); }

TopkRowsDesc convert(const fovea_topk_rows_desc& from) { return convert_desc<detail::kTopkRowsFields>(from); }
TopkRowsArgs convert(const fovea_topk_rows_args& from) { return convert_args<detail::kTopkRowsFields>(from); }

}  // namespace
}  // namespace fovea::c_api

extern "C" {

using namespace fovea::c_api;

fovea_status fovea_index_logits_plan(const fovea_index_logits_desc* desc, const fovea_options* options, fovea_plan** plan) {
  return plan_into(desc, plan, [&] { return fovea::plan_index_logits(convert(*desc), device(options), plan_options(options)); });
}

fovea_status fovea_index_logits_run(const fovea_plan* plan, const fovea_index_logits_args* args, void* workspace, size_t workspace_bytes,
                                    void* stream) {
  return with_plan<fovea::IndexLogitsPlan>(plan, args, [&](const fovea::IndexLogitsPlan& held) {
    return held.run(convert(*args), {workspace, workspace_bytes}, {stream});
  });
}

fovea_status fovea_topk_rows_plan(const fovea_topk_rows_desc* desc, const fovea_options* options, fovea_plan** plan) {
  return plan_into(desc, plan, [&] { return fovea::plan_topk_rows(convert(*desc), device(options), plan_options(options)); });
}

fovea_status fovea_topk_rows_run(const fovea_plan* plan, const fovea_topk_rows_args* args, void* workspace, size_t workspace_bytes,
                                 void* stream) {
  return with_plan<fovea::TopkRowsPlan>(plan, args, [&](const fovea::TopkRowsPlan& held) {
    return held.run(convert(*args), {workspace, workspace_bytes}, {stream});
  });
}

}  // extern "C"
