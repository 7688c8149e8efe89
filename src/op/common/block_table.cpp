// SPDX-License-Identifier: Apache-2.0
#include "op/common/block_table.hpp"

#include <algorithm>

#include "op/common/band.hpp"

namespace fovea::detail {

std::int64_t bound_of_keys(std::int64_t max_kv_len, std::int64_t max_blocks, std::int64_t page) {
  constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 1;  // lengths are i32, whatever the table has room for
  const std::int64_t capacity = max_blocks > kMost / page ? kMost : max_blocks * page;
  return max_kv_len == 0 ? capacity : std::min(max_kv_len, capacity);
}

void check_sequence_blocks(Checker& check, const BlockTableView& table, const BandMask& mask, std::int64_t b, std::int64_t seq_q,
                           std::int64_t kv_len) {
  if (!check.ok()) return;
  if (kv_len < 0 || kv_len > table.max_kv_len) {
    check.fail(invalid("kv_len[" + std::to_string(b) + "]", kv_len, "0 to " + std::to_string(table.max_kv_len) + " (the planned bound)"));
    return;
  }
  if (seq_q == 0) return;
  const KeyRange keys = keys_seen_by_some(make_band(mask, seq_q, kv_len), 0, seq_q, kv_len);
  if (keys.size() == 0) return;
  const std::int32_t* row = table.entries + b * table.stride;
  for (std::int64_t i = keys.begin / table.page; i <= (keys.end - 1) / table.page; ++i) {
    if (row[i] >= 0 && row[i] < table.blocks) continue;
    const std::string subject = "block_table[" + std::to_string(b) + "][" + std::to_string(i) + "] (block number)";
    return check.fail(invalid(subject, row[i], "0 to " + std::to_string(table.blocks - 1)));
  }
}

}  // namespace fovea::detail
