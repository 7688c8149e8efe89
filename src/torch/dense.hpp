// SPDX-License-Identifier: Apache-2.0
/// What the operators of dense attention, forward and backward, take alike.
#pragma once

#include "arguments.hpp"

namespace fovea::binding {

/// The first arguments of their schemas, q to sink. out and lse are outputs forward and inputs backward.
struct DenseCall {
  Tensor q, k, v, out;
  OptionalTensor lse, cu_seqlens_q, cu_seqlens_k;
  std::int64_t max_seqlen_q, max_seqlen_k;  // -1: not given
  BandMask mask;
  float scale, softcap;
  OptionalTensor sink;
};

DenseCall take_dense(Arguments& arguments);

/// Everything of the description but the scales.
AttentionDesc describe_dense(const DenseCall& call);

/// Likewise, of the pointers. Only for a call that has been planned.
AttentionArgs dense_args(const DenseCall& call);

}  // namespace fovea::binding
