// SPDX-License-Identifier: Apache-2.0
/// What the operators over dense tensors, fixed or ragged, take alike.
#pragma once

#include <array>
#include <utility>

#include "arguments.hpp"

namespace fovea::binding {

/// Bounds of the lengths in a ragged batch: absent in a fixed one.
struct Bounds {
  std::optional<std::int64_t> q, k;
};

BandMask take_mask(Arguments& arguments);

/// The sequences of a ragged batch: all of it absent in a fixed one.
struct Sequences {
  const OptionalTensor &cu_seqlens_q, &cu_seqlens_k;
  const Bounds& bounds;
};

/// Without a bound from the caller, the longest sequence is at most all rows together.
std::optional<RaggedDesc> describe_ragged(const Sequences& sequences, const Tensor& q, const Tensor& k);

/// The same where keys and values are all there is.
std::optional<RaggedDesc> describe_ragged(const OptionalTensor& cu_seqlens_k, std::optional<std::int64_t> max_seqlen_k, const Tensor& v);

/// Which tokens share a scale, as torch says it.
struct Groups {
  std::string granularity;
  std::int64_t warp_rows;

  Int8Groups of_plan() const;
};

/// A dtype of v's codes, from torch's number for it.
DType v_dtype_of(std::int32_t dtype);

inline constexpr std::array kGranularities{std::pair{"block", Int8Granularity::block}, std::pair{"warp", Int8Granularity::warp},
                                           std::pair{"thread", Int8Granularity::thread}};

}  // namespace fovea::binding
