// SPDX-License-Identifier: Apache-2.0
/// What a launch passes to the kernel.
#pragma once

#include <cstdint>

#include "gpu/cuda/sm90/attention/params.hpp"
#include "gpu/cuda/sm90/paged_attention/tuning.hpp"
#include "op/common/fast_divmod.hpp"

namespace fovea::gpu::sm90::paged_attention {

/// All columns of the rows of a key tile that one page holds: (column of a slice, row of a group, slice, group of rows, block).
struct PageBoxes {
  CUtensorMap map{};
  int slice_step = 0, column_step = 0;  ///< slices from head to head, or columns where heads are no whole slices apart
  int blocks = 0;                       ///< of the cache, that have such boxes. Of others a box has eight rows of one slice
};

/// The caches are tensors of rows whose batch is a block, and whose tile is a group of rows.
struct Params : attention::Params {
  PageBoxes k_pages{}, v_pages{};
  CUtensorMap outside{};  ///< of keys in no block of the cache: out of bounds, and filled with NaN
  const std::int32_t *block_table = nullptr, *kv_len = nullptr;
  std::int64_t table_stride = 0;
  detail::FastDivmod page{};  ///< slots of a page
  int blocks = 0;
  int box_rows = kGroupRows;  ///< of a key tile, that one page holds
  int prefill_from = 0;       ///< query tokens; sequences of fewer are computed by the kernel after this one, beside it. 0: there is none

  /// Whether the block table's number is that of a block.
  constexpr bool has(int block) const { return static_cast<unsigned>(block) < static_cast<unsigned>(blocks); }
};

}  // namespace fovea::gpu::sm90::paged_attention
