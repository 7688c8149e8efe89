// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "op/common/attention_core.hpp"
#include "op/common/extent.hpp"
#include "op/common/latent_cache.hpp"

namespace fovea::detail {

/// A dense MLA decode that makes sense; only validate() makes one. kv_dtype is the dtype of plain rows, bf16 when packed.
struct LatentAttentionProblem : AttentionCore {
  bool ragged = false;
  bool has_scale = false;
  LatentCacheView cache{};
  std::int64_t max_blocks = 0;    ///< entries in a row of the block table
  std::int64_t table_stride = 0;  ///< from one row of the block table to the next
  Extents extents{};
};

}  // namespace fovea::detail
