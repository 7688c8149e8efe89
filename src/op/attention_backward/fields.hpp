// SPDX-License-Identifier: Apache-2.0
/// The fields of the gradient of dense attention beside the forward pass (kDenseFields), in the order of torch's schema.
#pragma once

#include "fovea/attention_backward.hpp"
#include "op/attention/fields.hpp"
#include "op/attention_backward/problem.hpp"
#include "op/common/fields.hpp"

namespace fovea::detail {

inline constexpr auto kAttentionBackwardFields = [] {
  using P = AttentionBackwardProblem;
  using D = AttentionBackwardDesc;
  using A = AttentionBackwardArgs;
  using C = fovea_attention_backward_desc;
  using B = fovea_attention_backward_args;
  using T = FieldTypes<P, D, A, C, B>;
  constexpr auto any_q = [](const P& p) { return p.total_q > 0; };
  constexpr auto any_k = [](const P& p) { return p.total_k > 0; };
  constexpr auto any_bias = [](const P& p) { return p.dbias_elements > 0; };
  constexpr auto sink = [](const P& p) { return p.has_sink; };
  constexpr auto heads = [](const D& d) { return extent_from_last(d.forward.q, 2); };
  return std::tuple{
      Field<T, &D::dout, &C::dout, &A::dout, &B::dout>{"dout", any_q, kIts<&P::dout_base_alignment>},
      Field<T, &D::dlse, &C::dlse, &A::dlse, &B::dlse, &P::has_dlse>{"dlse", any_q},
      Field<T, &D::dq, &C::dq, &A::dq, &B::dq>{"dq", any_q, kIts<&P::dq_base_alignment>},
      Field<T, &D::dk, &C::dk, &A::dk, &B::dk>{"dk", any_k, kIts<&P::dk_base_alignment>},
      Field<T, &D::dv, &C::dv, &A::dv, &B::dv>{"dv", any_k, kIts<&P::dv_base_alignment>},
      Field<T, &A::dsink, &B::dsink>{.name = "dsink", .needed = sink, .count = heads, .may_be_absent = true},
      Field<T, &D::dbias, &C::dbias, &A::dbias, &B::dbias, &P::has_dbias>{"dbias", any_bias, kIts<&P::dbias_alignment>},
  };
}();
static_assert(names_every_pointer<AttentionBackwardArgs>(kAttentionBackwardFields, sizeof(AttentionArgs)));

inline constexpr auto kAttentionBackwardOptions = options_of<kAttentionBackwardFields, kDenseFields>(
    Option<AttentionBackwardProblem>{"options.deterministic", [](const AttentionBackwardProblem& p) { return p.deterministic; }});

}  // namespace fovea::detail
