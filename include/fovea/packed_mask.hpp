// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/standard.hpp"

namespace fovea {

/// Bits that say which of a sequence's last n keys a query row sees. A key is visible if the band and the bits both let it be; the band
/// alone decides about the keys before those n.
///
/// Bit c of a row lies in its byte c / 8 at place c % 8, the lowest first, and stands for key `seq_k - n + c`. Bits of keys before key 0
/// count for nothing. Two layouts of rows:
///
/// * `row_bytes` 0: rows of n bits follow each other without gaps, and sequence b begins at byte `mask_indptr[b]`. With `tail` 0 these are
///   FlashInfer's `packed_custom_mask` and `mask_indptr`, byte for byte. A batch of one sequence may leave out `mask_indptr`.
/// * otherwise: row t of q, counted through the batch, begins at byte `t * row_bytes`, as SGLang's tree builder writes draft tokens.
///
/// Nothing here holds a length, so both are read where they lie, without a copy through the host. Where the host can read `mask_indptr`,
/// run() reports entries that fall, leave the mask or leave too few bytes. On a device a bit outside of the bytes is 0.
struct PackedMaskDesc {
  std::int64_t bytes = 0;      ///< of the whole mask
  std::int64_t tail = 0;       ///< n; 0 means every key of the sequence
  std::int64_t row_bytes = 0;  ///< from row to row; 0 means rows without gaps
};

}  // namespace fovea
