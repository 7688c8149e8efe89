// SPDX-License-Identifier: Apache-2.0
/// Parameters of the forward kernel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "gpu/cuda/common/attention_params.hpp"
#include "gpu/cuda/common/block_lists.hpp"
#include "gpu/cuda/common/packed_mask.hpp"
#include "gpu/cuda/common/score_bias.hpp"
#include "op/common/band.hpp"
#include "op/common/division.hpp"
#include "op/common/strides.hpp"

namespace fovea::gpu::portable::attention {

template <class Pointer>
struct Rows {
  Pointer data = nullptr;
  detail::RowStrides strides{};
  bool aligned = false;  ///< every row, to 16 bytes
};

/// Row `row` of a head, of elements of this type.
template <class Element, class Pointer>
constexpr auto* row_of_head(const Rows<Pointer>& rows, int batch, int row, int head) {
  using To = std::conditional_t<std::is_same_v<Pointer, void*>, Element, const Element>;
  return static_cast<To*>(rows.data) + batch * rows.strides.batch + row * rows.strides.row + head * rows.strides.head;
}

/// Numbers by which a CTA finds its work tile without a division.
struct WorkNumbers {
  detail::FastDivmod q_tiles{}, heads{};  ///< heads: groups of packed ones
  detail::FastDivmod heads_per_kv{};
  detail::NarrowMask mask{};
};

struct Params : AttentionParams {
  Rows<const void*> q;
  Rows<const void*> k;
  Rows<const void*> v;
  Rows<void*> out;
  int q_tiles = 0;         ///< of a sequence; of a ragged batch, the most of all sequences together
  int packed_shift = 0;    ///< log2 of the query heads that share a query tile
  WorkNumbers numbers{};   ///< work_numbers(); wide_attention has none
  bool transform = false;  ///< ScoreTransform::enabled
  float zero = 0;          ///< unknown to the compiler: OnlineSoftmax orders instructions by it
  float* lse = nullptr;    ///< or null
  detail::RowStrides lse_strides{};
  Splits splits{};
  BlockLists lists{};      ///< of kernels with Config::kLists
  MaskParams bits{};       ///< of kernels with a packed mask
  ScoreBiasParams bias{};  ///< of kernels with Config::kBiased
};

/// Once q_tiles, packed_shift and the fields of the problem are set.
inline WorkNumbers work_numbers(const Params& params) {
  const auto divmod_by = [](int count) { return detail::FastDivmod(std::max(count, 1)); };  // an empty call may have none
  return {.q_tiles = divmod_by(params.q_tiles),
          .heads = divmod_by(params.heads >> params.packed_shift),
          .heads_per_kv = divmod_by(params.heads_per_kv),
          .mask = detail::NarrowMask(params.mask)};
}

}  // namespace fovea::gpu::portable::attention
