// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/mask.hpp"
#include "op/common/checks.hpp"

namespace fovea::detail {

/// A block-table cache as far as lengths and block numbers go.
struct BlockTableView {
  const std::int32_t* entries = nullptr;
  std::int64_t stride = 0;  ///< from one sequence to the next
  std::int64_t page = 0, blocks = 0;
  std::int64_t max_kv_len = 0;  ///< the planned bound
};

/// The most keys of a sequence: what its row of the table has room for, and `max_kv_len` where that says less; 0 says nothing.
std::int64_t bound_of_keys(std::int64_t max_kv_len, std::int64_t max_blocks, std::int64_t page);

/// kv_len[b] is within its bound, and every block that holds a key which some of the sequence's `seq_q` rows sees has a number inside
/// the cache. Other entries may hold anything.
void check_sequence_blocks(Checker& check, const BlockTableView& table, const BandMask& mask, std::int64_t b, std::int64_t seq_q,
                           std::int64_t kv_len);

}  // namespace fovea::detail
