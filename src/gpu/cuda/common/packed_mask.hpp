// SPDX-License-Identifier: Apache-2.0
/// A packed mask as a parameter of kernels.
#pragma once

#include <cstdint>

#include "fovea/packed_mask.hpp"

namespace fovea::gpu {

struct MaskParams {
  const std::uint8_t* data = nullptr;
  const std::int32_t* indptr = nullptr;  ///< null where a sequence's first row says where its bits begin
  std::int64_t bytes = 0;
  std::int64_t row_bytes = 0;  ///< 0: rows without gaps
  int tail = 0;                ///< keys that have bits; 0: all

  MaskParams() = default;
  MaskParams(const PackedMaskDesc& mask, const auto& args)
      : data(args.packed_mask),
        indptr(mask.row_bytes == 0 ? args.mask_indptr : nullptr),
        bytes(mask.bytes),
        row_bytes(mask.row_bytes),
        tail(static_cast<int>(mask.tail)) {}
};

/// Where the bits of a sequence begin.
struct MaskBegin {
  std::int64_t first_row = 0;  ///< of q, through the batch
  int byte = 0;                ///< of a mask without row_bytes
  int seq_k = 0;
};

}  // namespace fovea::gpu
