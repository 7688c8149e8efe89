// SPDX-License-Identifier: Apache-2.0
/// The fields of the operations of 8-bit attention, in the order of torch's schemas. The options of quantisers and of the whole read
/// members of members: problem.hpp has them.
#pragma once

#include "fovea/c_quantized_attention.h"
#include "fovea/quantized_attention.hpp"
#include "op/common/fields.hpp"
#include "op/quantized_attention/problem.hpp"

namespace fovea::detail {

/// Entries of the prefix sums of a ragged batch's lengths.
template <class Desc>
constexpr std::int64_t entries_of_lengths(const Desc& desc) {
  return desc.ragged ? desc.ragged->batch + 1 : 0;
}

inline constexpr auto kQuantizeQkInt8Fields = [] {
  using P = QuantizeQkInt8Problem;
  using D = QuantizeQkInt8Desc;
  using A = QuantizeQkInt8Args;
  using C = fovea_quantize_qk_int8_desc;
  using B = fovea_quantize_qk_int8_args;
  using T = FieldTypes<P, D, A, C, B>;
  constexpr auto any_q = [](const P& p) { return p.total_q > 0; };
  constexpr auto any_k = [](const P& p) { return p.total_k > 0; };
  constexpr auto q_groups = [](const P& p) { return p.total_q > 0 && p.batch > 0; };
  constexpr auto k_groups = [](const P& p) { return p.total_k > 0 && p.batch > 0; };
  constexpr auto means = [](const P& p) { return p.k.has_mean && p.batch > 0; };
  constexpr auto shifts = [](const P& p) { return p.has_lse_shift && p.total_q > 0; };
  constexpr auto lengths = entries_of_lengths<D>;
  return std::tuple{
      Field<T, &D::q, &C::q, &A::q, &B::q>{"q", any_q, [](const P& p) { return p.q.from_alignment; }},
      Field<T, &D::k, &C::k, &A::k, &B::k>{"k", any_k, [](const P& p) { return p.k.from_alignment; }},
      Field<T, &D::q_int8, &C::q_int8, &A::q_int8, &B::q_int8>{"q_int8", any_q, [](const P& p) { return p.q.to_alignment; }},
      Field<T, &D::k_int8, &C::k_int8, &A::k_int8, &B::k_int8>{"k_int8", any_k, [](const P& p) { return p.k.to_alignment; }},
      Field<T, &D::q_scale, &C::q_scale, &A::q_scale, &B::q_scale>{"q_scale", q_groups},
      Field<T, &D::k_scale, &C::k_scale, &A::k_scale, &B::k_scale>{"k_scale", k_groups},
      Field<T, &D::k_mean, &C::k_mean, &A::k_mean, &B::k_mean>{"k_mean", means},
      Field<T, &D::lse_shift, &C::lse_shift, &A::lse_shift, &B::lse_shift>{"lse_shift", shifts},
      Field<T, &A::cu_seqlens_q, &B::cu_seqlens_q>{
          .name = "cu_seqlens_q", .needed = kIts<&P::ragged>, .count = lengths, .may_be_absent = true},
      Field<T, &A::cu_seqlens_k, &B::cu_seqlens_k>{
          .name = "cu_seqlens_k", .needed = kIts<&P::ragged>, .count = lengths, .may_be_absent = true},
      Field<T, &D::ragged, &C::ragged>{"ragged"},
      Field<T, &D::groups, &C::groups>{"groups"},
  };
}();
static_assert(names_every_pointer<QuantizeQkInt8Args>(kQuantizeQkInt8Fields));

inline constexpr auto kQuantizeVFields = [] {
  using P = QuantizeVProblem;
  using D = QuantizeVDesc;
  using A = QuantizeVArgs;
  using C = fovea_quantize_v_desc;
  using B = fovea_quantize_v_args;
  using T = FieldTypes<P, D, A, C, B>;
  constexpr auto any = [](const P& p) { return p.total_k > 0; };
  constexpr auto scales = [](const P& p) { return p.v.has_scale && p.batch > 0; };
  constexpr auto means = [](const P& p) { return p.v.has_mean && p.batch > 0; };
  return std::tuple{
      Field<T, &D::v, &C::v, &A::v, &B::v>{"v", any, [](const P& p) { return p.v.from_alignment; }},
      Field<T, &D::v_out, &C::v_out, &A::v_out, &B::v_out>{"v_out", any, [](const P& p) { return p.v.to_alignment; }},
      Field<T, &D::v_scale, &C::v_scale, &A::v_scale, &B::v_scale>{"v_scale", scales},
      Field<T, &D::v_mean, &C::v_mean, &A::v_mean, &B::v_mean>{"v_mean", means},
      Field<T, &A::cu_seqlens_k, &B::cu_seqlens_k>{
          .name = "cu_seqlens_k", .needed = kIts<&P::ragged>, .count = entries_of_lengths<D>, .may_be_absent = true},
      Field<T, &D::ragged, &C::ragged>{"ragged"},
  };
}();
static_assert(names_every_pointer<QuantizeVArgs>(kQuantizeVFields));

inline constexpr auto kQuantizedAttentionFields = [] {
  using P = QuantizedAttentionProblem;
  using D = QuantizedAttentionDesc;
  using A = QuantizedAttentionArgs;
  using C = fovea_quantized_attention_desc;
  using B = fovea_quantized_attention_args;
  using T = FieldTypes<P, D, A, C, B>;
  constexpr auto any_q = [](const P& p) { return p.total_q > 0; };
  constexpr auto any_k = [](const P& p) { return p.total_k > 0; };
  constexpr auto q_groups = [](const P& p) { return p.total_q > 0 && p.batch > 0; };
  constexpr auto k_groups = [](const P& p) { return p.total_k > 0 && p.batch > 0; };
  constexpr auto lengths = entries_of_lengths<D>;
  return std::tuple{
      Field<T, &D::q, &C::q, &A::q, &B::q>{"q", any_q, kIts<&P::q_base_alignment>},
      Field<T, &D::k, &C::k, &A::k, &B::k>{"k", any_k, kIts<&P::k_base_alignment>},
      Field<T, &D::v, &C::v, &A::v, &B::v>{"v", any_k, kIts<&P::v_base_alignment>},
      Field<T, &D::q_scale, &C::q_scale, &A::q_scale, &B::q_scale>{"q_scale", q_groups},
      Field<T, &D::k_scale, &C::k_scale, &A::k_scale, &B::k_scale>{"k_scale", k_groups},
      Field<T, &D::v_scale, &C::v_scale, &A::v_scale, &B::v_scale, &P::has_v_scale>{"v_scale", k_groups},
      Field<T, &D::v_mean, &C::v_mean, &A::v_mean, &B::v_mean, &P::has_v_mean>{"v_mean", k_groups},
      Field<T, &D::lse_shift, &C::lse_shift, &A::lse_shift, &B::lse_shift, &P::has_lse_shift>{"lse_shift", any_q},
      Field<T, &D::out, &C::out, &A::out, &B::out>{"out", any_q, kIts<&P::out_base_alignment>},
      Field<T, &D::lse, &C::lse, &A::lse, &B::lse, &P::has_lse>{"lse", any_q},
      Field<T, &A::cu_seqlens_q, &B::cu_seqlens_q>{
          .name = "cu_seqlens_q", .needed = kIts<&P::ragged>, .count = lengths, .may_be_absent = true},
      Field<T, &A::cu_seqlens_k, &B::cu_seqlens_k>{
          .name = "cu_seqlens_k", .needed = kIts<&P::ragged>, .count = lengths, .may_be_absent = true},
      Field<T, &D::ragged, &C::ragged, &P::ragged>{"ragged"},
      Field<T, &D::mask, &C::mask, &P::mask>{.name = "mask", .has_anchor = true},
      Field<T, &D::scale, &C::scale>{"scale"},
      Field<T, &D::groups, &C::groups>{"groups"},
  };
}();
static_assert(names_every_pointer<QuantizedAttentionArgs>(kQuantizedAttentionFields));

/// A member of a member, `groups`, has two options.
inline constexpr auto kQuantizedAttentionOptions = options_of<kQuantizedAttentionFields>(
    Option<QuantizedAttentionProblem>{"groups.granularity",
                                      [](const QuantizedAttentionProblem& p) { return p.groups.granularity != Int8Groups{}.granularity; }},
    Option<QuantizedAttentionProblem>{"groups.warp_rows",
                                      [](const QuantizedAttentionProblem& p) { return p.groups.warp_rows != Int8Groups{}.warp_rows; }});

inline constexpr auto kQuantizeAndAttendFields = [] {
  using P = QuantizeAndAttendProblem;
  using D = QuantizeAndAttendDesc;
  using A = QuantizeAndAttendArgs;
  using C = fovea_quantize_and_attend_desc;
  using B = fovea_quantize_and_attend_args;
  using T = FieldTypes<P, D, A, C, B>;
  constexpr auto any_q = [](const P& p) { return p.whole.total_q > 0; };
  constexpr auto any_k = [](const P& p) { return p.whole.total_k > 0; };
  constexpr auto lses = [](const P& p) { return p.whole.has_lse && p.whole.total_q > 0; };
  constexpr auto ragged = [](const P& p) { return p.whole.ragged; };
  constexpr auto lengths = entries_of_lengths<D>;
  return std::tuple{
      Field<T, &D::q, &C::q, &A::q, &B::q>{"q", any_q, [](const P& p) { return p.whole.q_base_alignment; }},
      Field<T, &D::k, &C::k, &A::k, &B::k>{"k", any_k, [](const P& p) { return p.whole.k_base_alignment; }},
      Field<T, &D::v, &C::v, &A::v, &B::v>{"v", any_k, [](const P& p) { return p.whole.v_base_alignment; }},
      Field<T, &D::out, &C::out, &A::out, &B::out>{"out", any_q, [](const P& p) { return p.whole.out_base_alignment; }},
      Field<T, &D::lse, &C::lse, &A::lse, &B::lse>{"lse", lses},
      Field<T, &A::cu_seqlens_q, &B::cu_seqlens_q>{.name = "cu_seqlens_q", .needed = ragged, .count = lengths, .may_be_absent = true},
      Field<T, &A::cu_seqlens_k, &B::cu_seqlens_k>{.name = "cu_seqlens_k", .needed = ragged, .count = lengths, .may_be_absent = true},
      Field<T, &D::ragged, &C::ragged>{"ragged"},
      Field<T, &D::mask, &C::mask>{.name = "mask", .has_anchor = true},
      Field<T, &D::scale, &C::scale>{"scale"},
      Field<T, &D::v_dtype, &C::v_dtype>{"v_dtype"},
      Field<T, &D::smooth_k, &C::smooth_k>{"smooth_k"},
      Field<T, &D::smooth_v, &C::smooth_v>{"smooth_v"},
      Field<T, &D::groups, &C::groups>{"groups"},
  };
}();
static_assert(names_every_pointer<QuantizeAndAttendArgs>(kQuantizeAndAttendFields));

}  // namespace fovea::detail
