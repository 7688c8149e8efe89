// SPDX-License-Identifier: Apache-2.0
#include "c_api/convert.hpp"
#include "c_api/handle.hpp"
#include "op/quantized_attention/fields.hpp"

namespace fovea::c_api {
namespace {

QuantizeQkInt8Desc convert(const fovea_quantize_qk_int8_desc& from) { return convert_desc<detail::kQuantizeQkInt8Fields>(from); }
QuantizeQkInt8Args convert(const fovea_quantize_qk_int8_args& from) { return convert_args<detail::kQuantizeQkInt8Fields>(from); }
QuantizeVDesc convert(const fovea_quantize_v_desc& from) { return convert_desc<detail::kQuantizeVFields>(from); }
QuantizeVArgs convert(const fovea_quantize_v_args& from) { return convert_args<detail::kQuantizeVFields>(from); }
QuantizedAttentionDesc convert(const fovea_quantized_attention_desc& from) { return convert_desc<detail::kQuantizedAttentionFields>(from); }
QuantizedAttentionArgs convert(const fovea_quantized_attention_args& from) { return convert_args<detail::kQuantizedAttentionFields>(from); }
QuantizeAndAttendDesc convert(const fovea_quantize_and_attend_desc& from) { return convert_desc<detail::kQuantizeAndAttendFields>(from); }
QuantizeAndAttendArgs convert(const fovea_quantize_and_attend_args& from) { return convert_args<detail::kQuantizeAndAttendFields>(from); }

/// `shape` of tensors whose shapes can be computed with; else an empty tensor.
template <class Shape>
fovea_tensor shape_for(const fovea_tensor* like, const fovea_ragged* bounds, const fovea_int8_groups* by, Shape&& shape) {
  fovea_tensor to{};
  guarded([&]() -> Result<void> {
    want_not_null(like, "tensor");
    const Int8Groups of = groups(by);
    if (of.warp_rows != 32 && of.warp_rows != 16) refuse("groups.warp_rows: got " + std::to_string(of.warp_rows) + ", want 32 or 16");
    const TensorDesc desc = tensor(*like, "tensor");
    constexpr std::int64_t kMost = std::int64_t{1} << 48;
    if (desc.rank != (bounds == nullptr ? 4 : 3)) refuse("tensor.rank: got " + std::to_string(desc.rank) + ", want 4, or 3 when ragged");
    for (const std::int64_t extent : desc.shape)
      if (extent < 0 || extent > kMost) refuse("tensor.shape: got " + std::to_string(extent) + ", want 0 to 2^48");
    if (bounds != nullptr && (bounds->batch < 0 || bounds->batch > kMost))
      refuse("ragged.batch: got " + std::to_string(bounds->batch) + ", want 0 to 2^31 - 1");
    const TensorDesc made = std::forward<Shape>(shape)(of, desc, optional_ragged(bounds));
    to = fovea_contiguous(FOVEA_F32, made.rank, made.shape.data());
    return {};
  });
  return to;
}

}  // namespace
}  // namespace fovea::c_api

extern "C" {

using namespace fovea::c_api;

fovea_tensor fovea_int8_q_scale(const fovea_tensor* q, const fovea_ragged* ragged, const fovea_int8_groups* groups) {
  return shape_for(q, ragged, groups, [](const auto& of, const auto& like, const auto& bounds) { return of.q_scale(like, bounds); });
}

fovea_tensor fovea_int8_k_scale(const fovea_tensor* k, const fovea_ragged* ragged, const fovea_int8_groups* groups) {
  return shape_for(k, ragged, groups, [](const auto& of, const auto& like, const auto& bounds) { return of.k_scale(like, bounds); });
}

fovea_tensor fovea_int8_channels(const fovea_tensor* kv, const fovea_ragged* ragged) {
  return shape_for(kv, ragged, nullptr, [](const auto& of, const auto& like, const auto& bounds) { return of.channels(like, bounds); });
}

fovea_status fovea_quantize_qk_int8_plan(const fovea_quantize_qk_int8_desc* desc, const fovea_options* options, fovea_plan** plan) {
  return plan_into(desc, plan, [&] { return fovea::plan_quantize_qk_int8(convert(*desc), device(options), plan_options(options)); });
}

fovea_status fovea_quantize_qk_int8_run(const fovea_plan* plan, const fovea_quantize_qk_int8_args* args, void* workspace,
                                        size_t workspace_bytes, void* stream) {
  return with_plan<fovea::QuantizeQkInt8Plan>(plan, args, [&](const fovea::QuantizeQkInt8Plan& held) {
    return held.run(convert(*args), {workspace, workspace_bytes}, {stream});
  });
}

fovea_status fovea_quantize_v_plan(const fovea_quantize_v_desc* desc, const fovea_options* options, fovea_plan** plan) {
  return plan_into(desc, plan, [&] { return fovea::plan_quantize_v(convert(*desc), device(options), plan_options(options)); });
}

fovea_status fovea_quantize_v_run(const fovea_plan* plan, const fovea_quantize_v_args* args, void* workspace, size_t workspace_bytes,
                                  void* stream) {
  return with_plan<fovea::QuantizeVPlan>(plan, args, [&](const fovea::QuantizeVPlan& held) {
    return held.run(convert(*args), {workspace, workspace_bytes}, {stream});
  });
}

fovea_status fovea_quantized_attention_plan(const fovea_quantized_attention_desc* desc, const fovea_options* options, fovea_plan** plan) {
  return plan_into(desc, plan, [&] { return fovea::plan_quantized_attention(convert(*desc), device(options), plan_options(options)); });
}

fovea_status fovea_quantized_attention_run(const fovea_plan* plan, const fovea_quantized_attention_args* args, void* workspace,
                                           size_t workspace_bytes, void* stream) {
  return with_plan<fovea::QuantizedAttentionPlan>(plan, args, [&](const fovea::QuantizedAttentionPlan& held) {
    return held.run(convert(*args), {workspace, workspace_bytes}, {stream});
  });
}

fovea_status fovea_quantize_and_attend_plan(const fovea_quantize_and_attend_desc* desc, const fovea_options* options, fovea_plan** plan) {
  return plan_into(desc, plan, [&] { return fovea::plan_quantize_and_attend(convert(*desc), device(options), plan_options(options)); });
}

fovea_status fovea_quantize_and_attend_run(const fovea_plan* plan, const fovea_quantize_and_attend_args* args, void* workspace,
                                           size_t workspace_bytes, void* stream) {
  return with_plan<fovea::QuantizeAndAttendPlan>(plan, args, [&](const fovea::QuantizeAndAttendPlan& held) {
    return held.run(convert(*args), {workspace, workspace_bytes}, {stream});
  });
}

}  // extern "C"
