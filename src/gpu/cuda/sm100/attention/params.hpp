// SPDX-License-Identifier: Apache-2.0
/// Parameters of a launch.
#pragma once

#include "gpu/cuda/common/attention_params.hpp"
#include "gpu/cuda/sm90/clipped_rows.hpp"
#include "op/common/strides.hpp"
#include "op/common/tile_order.hpp"

namespace fovea::gpu::sm100::attention {

struct Params : AttentionParams {
  static constexpr int packed_shift = 0;  ///< WorkTile: a row has one head
  sm90::ClippedRows q, k, v;
  detail::SectionOrder order{};  ///< of work tiles
  void* out = nullptr;
  detail::RowStrides out_strides{};
  float* lse = nullptr;  ///< or null
  detail::RowStrides lse_strides{};
};

}  // namespace fovea::gpu::sm100::attention
