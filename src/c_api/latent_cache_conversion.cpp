// SPDX-License-Identifier: Apache-2.0
#include "c_api/convert.hpp"
#include "c_api/handle.hpp"

namespace fovea::c_api {
namespace {

LatentCacheConversionDesc convert(const fovea_latent_cache_conversion_desc& from) {
  return {.rows = tensor(from.rows, "rows"), .cache = latent_cache(from.cache, "cache"), .rule = scale_rule(from.rule)};
}

QuantizeLatentCacheArgs convert(const fovea_quantize_latent_cache_args& from) { return {from.rows, from.cache, from.slot_mapping}; }

DequantizeLatentCacheArgs convert(const fovea_dequantize_latent_cache_args& from) { return {from.rows, from.cache, from.slot_mapping}; }

}  // namespace
}  // namespace fovea::c_api

extern "C" {

using namespace fovea::c_api;

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
