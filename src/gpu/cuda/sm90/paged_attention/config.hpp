// SPDX-License-Identifier: Apache-2.0
/// Parameters of a launch of paged attention, and the constants of its kernels: the tiles of attention/,
/// with keys that a block table names.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "gpu/cuda/common/packed_mask.hpp"
#include "gpu/cuda/sm90/attention/config.hpp"
#include "gpu/cuda/sm90/dense/params.hpp"
#include "gpu/cuda/sm90/paged_attention/tuning.hpp"
#include "gpu/launch.hpp"
#include "op/common/division.hpp"

namespace fovea::gpu::sm90::paged_attention {

/// A map whose boxes have all columns of the rows of a key tile that one page holds. Coordinates: column
/// of a slice, row of a group, slice, group of rows, block.
struct PageBoxes {
  CUtensorMap map{};
  int slice_step = 0;   ///< slices from head to head
  int column_step = 0;  ///< columns from head to head, where heads are no whole slices apart
  int blocks = 0;       ///< blocks with such boxes; boxes of the others have eight rows of one slice
};

/// The caches are tensors of rows. Their batch is a block, their tile a group of rows.
struct Params : dense::Params {
  PageBoxes k_pages{}, v_pages{};
  CUtensorMap outside{};                      ///< map of keys in no block: out of bounds, filled with NaN
  const std::int32_t* block_table = nullptr;  ///< [batch][table_stride]
  const std::int32_t* kv_len = nullptr;       ///< [batch]
  std::int64_t table_stride = 0;
  detail::FastDivmod page{};  ///< slots of a page
  int blocks = 0;
  int box_rows = kGroupRows;  ///< rows of a key tile that one page holds
  /// Query tokens. The co-launched kernel after this one computes sequences of fewer. 0: there is none.
  int prefill_from = 0;
  MaskParams bits{};  ///< of kernels with a packed mask

  /// Whether a number in the block table is that of a block.
  constexpr bool has(int block) const { return static_cast<unsigned>(block) < static_cast<unsigned>(blocks); }
};

template <class Element>
struct PagedKeys;  // load.cuh

/// The slices of eight rows follow one another, so that a TMA box holds all of a page.
template <class Element_, int kTuning_, bool kTransform_>
struct Config : attention::Config<Element_, kTuning_, kTransform_> {
  using Base = attention::Config<Element_, kTuning_, kTransform_>;
  using Params = paged_attention::Params;
  using Keys = PagedKeys<Element_>;
  static constexpr bool kTickets = false;
  static constexpr int kKeySliceStep = kGroupRows * kSliceBytes;
  static constexpr int kKeyGroupBytes = Base::kSlicesQk * kKeySliceStep, kValueGroupBytes = Base::kSlicesV * kKeySliceStep;
  static_assert(sizeof(Element_) == 2);
  static_assert(Base::kKeyTile % kGroupRows == 0 && Base::kKeyTile <= 32 * kGroupRows);  // a lane for each box
};

/// With a packed mask. One kernel has and has not a transform.
template <class Element, int kTuning>
struct MaskedConfig : Config<Element, kTuning, true> {
  static constexpr bool kPackedMask = true;
};

/// The launch of a kernel, which the build instantiates for the rows of tuning.hpp.
template <class Config>
CudaStatus launch_attend(const Params& params, int ctas, int ordinal, Stream stream);

}  // namespace fovea::gpu::sm90::paged_attention
