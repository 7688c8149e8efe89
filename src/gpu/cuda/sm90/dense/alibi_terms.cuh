// SPDX-License-Identifier: Apache-2.0
/// The slope and the diagonal of a work tile with ALiBi.
#pragma once

#include "fovea/mask.hpp"
#include "gpu/cuda/common/work_tile.cuh"

namespace fovea::gpu::sm90::dense {

/// Whether a kernel adds ALiBi.
template <class Config>
inline constexpr bool kAlibi = requires {
  Config::kAlibi;
};

/// The slope of a work tile, in natural units.
template <class Params>
__device__ __forceinline__ float slope_of(const Params& params, const WorkTile& work) {
  const auto& alibi = params.alibi;
  return __ldg(alibi.slopes + work.batch * alibi.slope_batch + work.head * alibi.slope_head);
}

/// The diagonal of a row less its token. The length of a work tile may end with its rows.
template <class Params>
__device__ __forceinline__ int diagonal_offset(const Params& params, const WorkTile& work) {
  if (params.mask.anchor != Anchor::bottom_right) return 0;
  const bool ragged = params.cu_seqlens_q != nullptr;
  return work.seq_k - (ragged ? sequence_length(params.cu_seqlens_q, work.batch, params.seq_q) : params.seq_q);
}

}  // namespace fovea::gpu::sm90::dense
