// SPDX-License-Identifier: Apache-2.0
/// What a launch passes to the forward kernel.
#pragma once

#include <cstdint>
#include <type_traits>

#include "fovea/mask.hpp"
#include "gpu/cuda/common/splits.hpp"
#include "op/common/attention_core.hpp"

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

struct Params {
  Rows<const void*> q, k, v;
  Rows<void*> out;
  int q_tiles = 0;                      ///< of a sequence; of a ragged batch, the most that all sequences have between them
  int batch = 0, seq_q = 0, seq_k = 0;  ///< lengths, which are bounds of a ragged batch
  int heads = 0, heads_per_kv = 1;
  int packed_shift = 0;  ///< log2 of the query heads that share a query tile
  int head_dim_qk = 0, head_dim_v = 0;
  const std::int32_t *cu_seqlens_q = nullptr, *cu_seqlens_k = nullptr;  ///< [batch + 1], of a ragged batch
  BandMask mask{};
  float scale_log2 = 0;                           ///< of scores as they enter the softmax; includes log2(e)
  bool transform = false;                         ///< scores are softcapped, or their scale is negative
  float scale = 1, inv_softcap = 0, softcap = 0;  ///< where `transform`
  float zero = 0;                                 ///< which no compiler knows: OnlineSoftmax makes order with it
  const float* sink = nullptr;                    ///< [heads], or null
  float* lse = nullptr;                           ///< or null
  detail::RowStrides lse_strides{};
  Splits splits{};
};

}  // namespace fovea::gpu::portable::attention
