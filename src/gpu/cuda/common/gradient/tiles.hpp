// SPDX-License-Identifier: Apache-2.0
/// What the kernels before and after the products of a backward pass have in common with those between them.
#pragma once

#include "op/common/attention_core.hpp"

namespace fovea::gpu::gradient {

inline constexpr int kQueryTile = 64;  // rows that one RowStats knows

/// What the kernel needs to know of the rows of a query tile. Rows without a gradient have an lse of plus infinity.
struct alignas(16) RowStats {
  float minus_lse[kQueryTile];  // with the sink's share; in base 2 unless `natural`
  float delta[kQueryTile];      // dout . out, less dlse
  int natural;                  // lse is so large that scores are to be rounded as it was
  int unused[3];
};

/// A tensor that ordinary loads and stores access.
struct PlainRows {
  const void* data = nullptr;
  detail::RowStrides strides{};
};

}  // namespace fovea::gpu::gradient
