// SPDX-License-Identifier: Apache-2.0
/// Launches of both kernels.
#pragma once

#include "gpu/cuda/common/instances.hpp"
#include "gpu/cuda/sm90/paged_attention/columns/scores.cuh"
#include "gpu/cuda/sm90/paged_attention/columns/values.cuh"

namespace fovea::gpu::sm90::paged_attention::columns {

template <class Element, int kHeadDim, int kKeyTile>
CudaStatus launch_scores(const Params& params, unsigned ctas, int ordinal, Stream stream) {
  using Shared = ScoreShared<kHeadDim, kKeyTile>;
  constexpr auto kKernel = &compute_scores<Element, kHeadDim, kKeyTile>;
  if (const CudaStatus good = allow_shared_bytes<kKernel>(ordinal, sizeof(Shared)); !good) return good;
  const LaunchShape shape{.grid = dim3(ctas, static_cast<unsigned>(params.kv_heads), static_cast<unsigned>(params.batch)),
                          .block = dim3(kScoreThreads),
                          .shared_bytes = sizeof(Shared),
                          .programmatic = true};
  return launch(kKernel, shape, stream, params);
}

template <class Element, int kKeyTile, int kGroups, int kRowsOfLane>
CudaStatus launch_values(const Params& params, int ordinal, Stream stream) {
  using Shared = ValueShared<kKeyTile, kGroups, kRowsOfLane>;
  constexpr auto kKernel = &weigh_values<Element, kKeyTile, kGroups, kRowsOfLane>;
  static_assert(sizeof(Shared) <= 227 * 1024);
  if (const CudaStatus good = allow_shared_bytes<kKernel>(ordinal, sizeof(Shared)); !good) return good;
  const int ctas = detail::ceil_div(params.head_dim_v, 8 * kGroups);
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(ctas), static_cast<unsigned>(params.kv_heads), static_cast<unsigned>(params.batch)),
      .block = dim3(Shared::kThreads),
      .shared_bytes = sizeof(Shared),
      .programmatic = true};
  return launch(kKernel, shape, stream, params);
}

template <class Element, int kKeyTile, int kRowsOfLane>
CudaStatus launch_values(const Params& params, int groups, int ordinal, Stream stream) {
  if (groups == 1) return launch_values<Element, kKeyTile, 1, kRowsOfLane>(params, ordinal, stream);
  if (groups == 2) return launch_values<Element, kKeyTile, 2, kRowsOfLane>(params, ordinal, stream);
  return launch_values<Element, kKeyTile, 4, kRowsOfLane>(params, ordinal, stream);
}

/// Calls for a row of tuning.hpp.
template <class Element, int kKernel>
CudaStatus launch_row(const Params& params, int groups, unsigned ctas, int ordinal, Stream stream) {
  constexpr attention::Tuning kTiles = tuning_of(kKernel);
  if (const CudaStatus good = launch_scores<Element, kTiles.head_dim_qk, kTiles.key_tile>(params, ctas, ordinal, stream); !good)
    return good;
  return params.score_rows <= 8 ? launch_values<Element, kTiles.key_tile, 1>(params, groups, ordinal, stream)
                                : launch_values<Element, kTiles.key_tile, 2>(params, groups, ordinal, stream);
}

template <class Element>
CudaStatus launch_columns(const Params& params, int kernel, int groups, int ctas_of_cell, int ordinal, Stream stream) {
  using Launch = CudaStatus (*)(const Params&, int, unsigned, int, Stream);
  const Launch launch = function_of_row<kKernels.size()>(kernel, [](auto row) -> Launch { return &launch_row<Element, row.value>; });
  return launch(params, groups, static_cast<unsigned>(ctas_of_cell), ordinal, stream);
}

}  // namespace fovea::gpu::sm90::paged_attention::columns
