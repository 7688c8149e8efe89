// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "op/common/attention_core.hpp"
#include "op/common/cache_view.hpp"
#include "op/common/extent.hpp"

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
  SequenceClass sequences = SequenceClass::all;
  std::int64_t prefill_from = 0;
  Extents extents{};
};

}  // namespace fovea::detail
