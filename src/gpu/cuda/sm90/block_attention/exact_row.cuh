// SPDX-License-Identifier: Apache-2.0
/// One row of a work tile by scalar arithmetic, over the keys that lists, their bits and the band let it see.
#pragma once

#include "gpu/cuda/common/block_lists.cuh"
#include "gpu/cuda/sm90/block_attention/config.hpp"
#include "gpu/cuda/sm90/dense/exact_row.cuh"

namespace fovea::gpu::sm90::dense {

template <class Element, int kRow, bool kTransform>
struct ExactRow<block_attention::Config<Element, kRow, kTransform>> {
  using Config = block_attention::Config<Element, kRow, kTransform>;
  const block_attention::Params& params;
  const WorkTile& work;
  RowPlace at;
  int key_tile;

  static constexpr int kColumns = gpu::ExactRow<Element>::kColumns;

  /// Computes the weighted mean of the values that the row sees, by a whole warp.
  __device__ void operator()(ScoreScale scale, float (&columns)[kColumns]) const {
    const auto* q = static_cast<const Element*>(params.q.data) + row_offset(params.q, work, work.q_begin + at.token, at.head);
    const gpu::ExactRow<Element> exact{q, params.head_dim_qk, params.head_dim_v};
    const typename Config::Keys row_of(params, work, at.head / params.heads_per_kv);
    using Keys = VisibleKeys<Config::kKeyTile>;
    const int count = Keys(params.lists, work, at.token).count();
    Keys keys(params.lists, work, at.token);
    const auto score_of = [&](float score, int) { return kTransform ? transformed(params, score) : score; };
    exact(
        0, count, scale.log2, [&](int) { return row_of(keys.next()); }, score_of, columns);
  }
};

}  // namespace fovea::gpu::sm90::dense
