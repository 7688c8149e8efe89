// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/latent_attention.hpp"
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

/// The only maker of a LatentAttentionProblem.
Result<LatentAttentionProblem> validate(const LatentAttentionDesc& desc, const PlanOptions& options);

/// Pointers of run(): present where the description asks for them, aligned, and outputs apart from all else. Looks at no data.
Result<void> check_args(const LatentAttentionProblem& problem, const LatentAttentionArgs& args);

/// Where the host can read them: lengths within the bounds of the plan, block numbers of visible keys within the cache.
Result<void> check_lengths(const LatentAttentionProblem& problem, const LatentAttentionArgs& args);

}  // namespace fovea::detail
