// SPDX-License-Identifier: Apache-2.0
/// What the operators over dense tensors, fixed or ragged, take alike.
#pragma once

#include "arguments.hpp"

namespace fovea::binding {

/// The sequences of a ragged batch: all of it absent in a fixed one.
struct Sequences {
  OptionalTensor cu_seqlens_q, cu_seqlens_k;
  std::optional<std::int64_t> max_seqlen_q, max_seqlen_k;

  /// The lengths, checked; null in a fixed batch. Only for a call that has been planned.
  const std::int32_t* q_lengths() const;
  const std::int32_t* k_lengths() const;
};

Sequences take_sequences(Arguments& arguments);
BandMask take_mask(Arguments& arguments);

/// Without a bound from the caller, the longest sequence is at most all rows together.
std::optional<RaggedDesc> describe_ragged(const Sequences& sequences, const Tensor& q, const Tensor& k);

/// How many sequences the prefix sums of lengths are of.
std::int64_t batch_of(const Tensor& cu_seqlens, const char* name);

/// Rows of a ragged tensor.
std::int64_t rows_of(const Tensor& tensor);

/// The first arguments of the schemas of dense attention, forward and backward, q to sink. out and lse are outputs forward and inputs
/// backward.
struct DenseCall {
  Tensor q, k, v, out;
  OptionalTensor lse;
  Sequences sequences;
  BandMask mask;
  double scale, softcap;
  OptionalTensor sink;
};

DenseCall take_dense(Arguments& arguments);

/// Everything of the description but the scales.
AttentionDesc describe_dense(const DenseCall& call);

/// Likewise, of the pointers. Only for a call that has been planned.
AttentionArgs dense_args(const DenseCall& call);

}  // namespace fovea::binding
