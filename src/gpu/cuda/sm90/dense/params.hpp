// SPDX-License-Identifier: Apache-2.0
/// Parameters of a launch, of all kernels of dense attention. Those of paged and 8-bit attention add
/// their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "fovea/mask.hpp"
#include "fovea/tensor.hpp"
#include "gpu/cuda/sm90/clipped_rows.hpp"
#include "gpu/cuda/sm90/dense/tickets.hpp"
#include "op/common/strides.hpp"
#include "op/common/tile_order.hpp"

namespace fovea::gpu::sm90::dense {

/// An f32 factor of all values of a sequence and kv head; 1 without `data`.
struct Descale {
  const float* data = nullptr;
  std::int64_t batch_stride = 0, head_stride = 0;
};

inline Descale descale_of(const std::optional<ScaleDesc>& desc, const float* data) {
  return desc ? Descale{data, desc->batch_stride, desc->head_stride} : Descale{};
}

struct Params {
  ClippedRows q, k, v, out;
  detail::TileOrder order{};  ///< of the whole batch; a ragged one has its group alone
  Tickets tickets{};
  detail::SectionOrder sections{};      ///< of tickets, in a batch that is not ragged
  int batch = 0, seq_q = 0, seq_k = 0;  ///< lengths are bounds of a ragged batch
  int heads = 0, heads_per_kv = 1;
  std::int64_t rows = 0;  ///< of q, over the whole batch
  int packed_shift = 0;   ///< log2 of the query heads that share a query tile
  int splits = 1;
  int head_dim_qk = 0, head_dim_v = 0;
  const std::int32_t* cu_seqlens_q = nullptr;  ///< [batch + 1], of a ragged batch
  const std::int32_t* cu_seqlens_k = nullptr;  ///< likewise
  BandMask mask{};
  float scale_log2 = 0;                           ///< of scores in the softmax; includes log2(e)
  float scale = 1, inv_softcap = 0, softcap = 0;  ///< with Config::kTransform
  float zero = 0;                                 ///< 0, unknown to the compiler: OnlineSoftmax orders instructions with it
  const float* sink = nullptr;                    ///< [heads], or null
  float* lse = nullptr;                           ///< or null
  detail::RowStrides lse_strides{};
  float* partial_out = nullptr;  ///< [splits][rows][heads][head_dim_v], with splits
  float* partial_lse = nullptr;  ///< [splits][rows][heads]
  // e4m3 inputs alone:
  Descale q_scale, k_scale, v_scale;
  bool f32_out = false;

  constexpr int packed() const { return 1 << packed_shift; }
};

}  // namespace fovea::gpu::sm90::dense
