// SPDX-License-Identifier: Apache-2.0
/// Parameters of the forward kernel.
#pragma once

#include <cstdint>
#include <type_traits>

#include "gpu/cuda/common/attention_params.hpp"
#include "gpu/cuda/common/block_lists.hpp"
#include "gpu/cuda/common/packed_mask.hpp"
#include "gpu/cuda/common/score_bias.hpp"
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

struct Params : AttentionParams {
  Rows<const void*> q;
  Rows<const void*> k;
  Rows<const void*> v;
  Rows<void*> out;
  int q_tiles = 0;         ///< of a sequence; of a ragged batch, the most of all sequences together
  int packed_shift = 0;    ///< log2 of the query heads that share a query tile
  bool transform = false;  ///< ScoreTransform::enabled
  float zero = 0;          ///< unknown to the compiler: OnlineSoftmax orders instructions by it
  float* lse = nullptr;    ///< or null
  detail::RowStrides lse_strides{};
  Splits splits{};
  BlockLists lists{};      ///< of kernels with Config::kLists
  MaskParams bits{};       ///< of kernels with a packed mask
  ScoreBiasParams bias{};  ///< of kernels with Config::kBiased
};

}  // namespace fovea::gpu::portable::attention
