// SPDX-License-Identifier: Apache-2.0
/// What a launch passes to the forward kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fovea/mask.hpp"
#include "gpu/cuda/sm90/clipped_rows.hpp"
#include "gpu/cuda/sm90/dense/descale.hpp"
#include "op/common/attention_core.hpp"
#include "op/common/tile_order.hpp"

namespace fovea::gpu::sm90::attention {

struct Params {
  ClippedRows q, k, v, out;
  detail::TileOrder order{};            ///< of the whole batch; of a ragged one, the group alone is known
  int batch = 0, seq_q = 0, seq_k = 0;  ///< bounds of a ragged batch
  int heads = 0, heads_per_kv = 1;
  std::int64_t rows = 0;  ///< of q over the whole batch
  int packed_shift = 0;   ///< log2 of the query heads that share a query tile
  int splits = 1;
  int head_dim_qk = 0, head_dim_v = 0;
  const std::int32_t *cu_seqlens_q = nullptr, *cu_seqlens_k = nullptr;  ///< [batch + 1], of a ragged batch
  BandMask mask{};
  float scale_log2 = 0;                           ///< of scores as they enter the softmax; includes log2(e)
  float scale = 1, inv_softcap = 0, softcap = 0;  ///< Config::kTransform
  float zero = 0;                                 ///< which no compiler knows: OnlineSoftmax makes order with it
  const float* sink = nullptr;                    ///< [heads], or null
  float* lse = nullptr;                           ///< or null
  detail::RowStrides lse_strides{};
  float *partial_out = nullptr, *partial_lse = nullptr;  ///< of Splits, where there are splits
  // Of e4m3 inputs.
  dense::Descale q_scale, k_scale, v_scale;
  const std::byte* value_tiles = nullptr;  ///< V^T by key tiles: gpu/cuda/common/value_tiles.hpp
  bool f32_out = false;

  constexpr int packed() const { return 1 << packed_shift; }
};

}  // namespace fovea::gpu::sm90::attention
