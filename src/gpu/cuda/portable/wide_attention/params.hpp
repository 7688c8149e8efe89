// SPDX-License-Identifier: Apache-2.0
/// Parameters of the kernel for wide heads: those of dense attention, and the block table of a
/// cache.
#pragma once

#include <cstdint>

#include "gpu/cuda/portable/attention/params.hpp"
#include "op/common/division.hpp"

namespace fovea::gpu::portable::wide_attention {

using attention::row_of_head;
using attention::Rows;

/// `k` and `v` of a cache have strides of blocks in place of batches, of tokens in place of rows.
struct Params : attention::Params {
  const std::int32_t* block_table = nullptr;
  const std::int32_t* kv_len = nullptr;
  std::int64_t table_stride = 0;
  detail::FastDivmod page{};  ///< slots of a page
  int blocks = 0;
};

}  // namespace fovea::gpu::portable::wide_attention
