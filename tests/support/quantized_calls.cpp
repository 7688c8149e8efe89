// SPDX-License-Identifier: Apache-2.0
/// The descriptions and arguments of each step of a case of 8-bit attention.
#include "quantized_tensors.hpp"

namespace fovea::check {

QuantizeQkInt8Desc QuantizedTensors::qk_desc() const {
  QuantizeQkInt8Desc desc{.q = q.desc(),
                          .k = k.desc(),
                          .q_int8 = q_int8.desc(),
                          .k_int8 = k_int8.desc(),
                          .q_scale = q_scale.desc(),
                          .k_scale = k_scale.desc(),
                          .ragged = ragged,
                          .groups = spec.groups};
  if (spec.smooth_k) desc.k_mean = k_mean.desc();
  if (spec.smooth_k && spec.lse) desc.lse_shift = lse_shift.desc();
  return desc;
}

QuantizeQkInt8Args QuantizedTensors::qk_args() const {
  return {.q = q.data(),
          .k = k.data(),
          .q_int8 = q_int8.as<std::int8_t>(),
          .k_int8 = k_int8.as<std::int8_t>(),
          .q_scale = q_scale.as<float>(),
          .k_scale = k_scale.as<float>(),
          .k_mean = spec.smooth_k ? k_mean.as<float>() : nullptr,
          .lse_shift = spec.smooth_k && spec.lse ? lse_shift.as<float>() : nullptr,
          .cu_seqlens_q = cu_q.as<const std::int32_t>(),
          .cu_seqlens_k = cu_k.as<const std::int32_t>()};
}

QuantizeVDesc QuantizedTensors::v_desc() const {
  QuantizeVDesc desc{.v = v.desc(), .v_out = v_out.desc(), .ragged = ragged};
  if (spec.v_dtype == DType::e4m3) desc.v_scale = v_scale.desc();
  if (spec.smooth_v) desc.v_mean = v_mean.desc();
  return desc;
}

QuantizeVArgs QuantizedTensors::v_args() const {
  return {.v = v.data(),
          .v_out = v_out.data(),
          .v_scale = spec.v_dtype == DType::e4m3 ? v_scale.as<float>() : nullptr,
          .v_mean = spec.smooth_v ? v_mean.as<float>() : nullptr,
          .cu_seqlens_k = cu_k.as<const std::int32_t>()};
}

QuantizedAttentionDesc QuantizedTensors::attention_desc() const {
  const QuantizeQkInt8Desc qk = qk_desc();
  const QuantizeVDesc values = v_desc();
  QuantizedAttentionDesc desc{.q = qk.q_int8,
                              .k = qk.k_int8,
                              .v = values.v_out,
                              .out = out.desc(),
                              .q_scale = qk.q_scale,
                              .k_scale = qk.k_scale,
                              .v_scale = values.v_scale,
                              .v_mean = values.v_mean,
                              .lse_shift = qk.lse_shift,
                              .ragged = ragged,
                              .mask = spec.mask,
                              .scale = spec.scale,
                              .groups = spec.groups};
  if (spec.lse) desc.lse = lse.desc();
  return desc;
}

QuantizedAttentionArgs QuantizedTensors::attention_args() const {
  const QuantizeQkInt8Args qk = qk_args();
  const QuantizeVArgs values = v_args();
  return {.q = qk.q_int8,
          .k = qk.k_int8,
          .v = values.v_out,
          .out = out.data(),
          .q_scale = qk.q_scale,
          .k_scale = qk.k_scale,
          .v_scale = values.v_scale,
          .v_mean = values.v_mean,
          .lse = spec.lse ? lse.as<float>() : nullptr,
          .lse_shift = qk.lse_shift,
          .cu_seqlens_q = qk.cu_seqlens_q,
          .cu_seqlens_k = qk.cu_seqlens_k};
}

QuantizeAndAttendDesc QuantizedTensors::whole_desc() const {
  QuantizeAndAttendDesc desc{.q = q.desc(),
                             .k = k.desc(),
                             .v = v.desc(),
                             .out = out.desc(),
                             .ragged = ragged,
                             .mask = spec.mask,
                             .scale = spec.scale,
                             .groups = spec.groups,
                             .v_dtype = spec.v_dtype,
                             .smooth_k = spec.smooth_k,
                             .smooth_v = spec.smooth_v};
  if (spec.lse) desc.lse = lse.desc();
  return desc;
}

QuantizeAndAttendArgs QuantizedTensors::whole_args() const {
  return {.q = q.data(),
          .k = k.data(),
          .v = v.data(),
          .out = out.data(),
          .lse = spec.lse ? lse.as<float>() : nullptr,
          .cu_seqlens_q = cu_q.as<const std::int32_t>(),
          .cu_seqlens_k = cu_k.as<const std::int32_t>()};
}

}  // namespace fovea::check
