// SPDX-License-Identifier: Apache-2.0
/// Which keys the packed mask of a call shows.
#pragma once

#include <cstdint>

#include "fovea/packed_mask.hpp"
#include "op/common/attention_core.hpp"

namespace fovea::detail {

/// The packed mask of a run. `indptr` is null where the layout has none.
struct MaskBytes {
  const std::uint8_t* bytes = nullptr;
  const std::int32_t* indptr = nullptr;
};

/// The bits of one sequence. Bit `first_bit + row * row_bits + key - first_key` of the mask shows `key` to `row`.
struct SequenceBits {
  const std::uint8_t* bytes = nullptr;
  std::int64_t bits = 0;       ///< of the whole mask
  std::int64_t first_bit = 0;  ///< of row 0
  std::int64_t row_bits = 0;   ///< from row to row
  std::int64_t first_key = 0;  ///< of bit 0; may lie before key 0

  /// Requires key >= first_key. A bit outside of the mask shows nothing.
  constexpr bool shows(std::int64_t row, std::int64_t key) const {
    const std::int64_t at = first_bit + row * row_bits + (key - first_key);
    return at >= 0 && at < bits && ((bytes[at / 8] >> (at % 8)) & 1) != 0;
  }
};

/// `first_row` counts rows of q through the batch.
constexpr SequenceBits sequence_bits(const PackedMaskDesc& mask, const MaskBytes& from, std::int64_t b, std::int64_t first_row,
                                     std::int64_t seq_k) {
  const std::int64_t keys = mask.tail == 0 ? seq_k : mask.tail;
  const std::int64_t byte = mask.row_bytes != 0 ? first_row * mask.row_bytes : from.indptr == nullptr ? 0 : from.indptr[b];
  return {.bytes = from.bytes,
          .bits = 8 * mask.bytes,
          .first_bit = 8 * byte,
          .row_bits = mask.row_bytes != 0 ? 8 * mask.row_bytes : keys,
          .first_key = seq_k - keys};
}

/// The description makes sense beside the shapes of `core`.
void check_packed_mask(Checker& check, const PackedMaskDesc& mask, const AttentionCore& core);

/// The bytes of sequence b suffice for its rows and lie within the mask.
void check_sequence_mask(Checker& check, const PackedMaskDesc& mask, const std::int32_t* indptr, std::int64_t b, std::int64_t seq_q,
                         std::int64_t seq_k);

}  // namespace fovea::detail
