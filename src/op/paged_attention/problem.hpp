// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/paged_attention.hpp"
#include "op/common/attention_core.hpp"
#include "op/common/extent.hpp"
#include "op/common/strides.hpp"

namespace fovea::detail {

/// The sequences that an entry computes, where two share a call. To each, the other's sequences have no query rows.
enum class SequenceClass : std::uint8_t {
  all,      ///< of an entry that has the call to itself: what validate() says
  prefill,  ///< of `prefill_from` query tokens and more
  decode,   ///< of fewer
};

/// A paged attention that makes sense; only validate() makes one. `ragged` by nature: q.batch is 0.
struct PagedAttentionProblem : AttentionCore {
  std::int64_t blocks = 0, page = 0;
  std::int64_t max_blocks = 0;    ///< entries in a row of the block table
  std::int64_t table_stride = 0;  ///< from one row of the block table to the next
  CacheStrides k{}, v{};
  KvFormat k_format = KvFormat::rows, v_format = KvFormat::rows;
  std::optional<TensorDesc> k_scale_cache{}, v_scale_cache{};  ///< where the format has scales
  SequenceClass sequences = SequenceClass::all;
  std::int64_t prefill_from = 0;
  Extents extents{};
};

/// The only maker of a PagedAttentionProblem.
Result<PagedAttentionProblem> validate(const PagedAttentionDesc& desc, const PlanOptions& options);

/// Pointers of run(): present where the description asks for them, aligned, and outputs apart from all else. Looks at no data.
Result<void> check_args(const PagedAttentionProblem& problem, const PagedAttentionArgs& args);

/// Checks that need tensors which the host can read: cu_seqlens_q and kv_len within the bounds of the plan, and the block
/// number of every block that holds a visible key within the cache. Other entries of the block table may hold anything.
Result<void> check_lengths(const PagedAttentionProblem& problem, const PagedAttentionArgs& args);

}  // namespace fovea::detail
