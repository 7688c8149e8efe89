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

/// Of a ragged batch, absent in a fixed one.
struct Bounds {
  std::optional<std::int64_t> q, k;
};

Bounds take_bounds(Arguments& arguments);
Sequences take_sequences(Arguments& arguments);
BandMask take_mask(Arguments& arguments);

/// Without a bound from the caller, the longest sequence is at most all rows together.
std::optional<RaggedDesc> describe_ragged(const Sequences& sequences, const Tensor& q, const Tensor& k);

/// How many sequences the prefix sums of lengths are of.
std::int64_t batch_of(const Tensor& cu_seqlens, const char* name);

/// Rows of a ragged tensor.
std::int64_t rows_of(const Tensor& tensor);

}  // namespace fovea::binding
