// SPDX-License-Identifier: Apache-2.0
/// Parameters of the kernels that quantise new rows to a format of codes and scales.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fovea/kv_format.hpp"
#include "op/common/division.hpp"
#include "op/common/strides.hpp"

namespace fovea::gpu::portable::append {

inline constexpr int kFormatThreads = 128;
inline constexpr int kRowLanes = 16, kLaneValues = 8;  ///< a row has 16 lanes, each takes 8 neighbours of every 128 values
inline constexpr int kRowsOfLanes = 2;                 ///< rows whose loads the lanes issue together
inline constexpr int kWidestRow = 2 * kRowLanes * kLaneValues;

/// K or V. Strides of rows count elements, those of the caches bytes.
struct FormatSide {
  const void* rows;     // (token, kv_head, head_dim)
  std::byte* cache;     // (block, page, kv_head, bytes of codes)
  std::byte* scales;    // (block, page, kv_head) or (.., groups)
  const float* global;  // (kv_head), or null
  std::int64_t row_stride, head_stride, global_stride;
  detail::CacheStrides strides, scale_strides;
  int head_dim;
  int store_bytes;   ///< at once: 8, 4 or 1, as rows are aligned
  bool load_packs;   ///< rows are whole packs of 8 values that lie at multiples of 16 bytes
  bool half_scales;  ///< scales are f16
};

struct FormatParams {
  FormatSide sides[2];  // blockIdx.y chooses
  const std::int64_t* slot_mapping;
  std::int64_t slots, page;
  detail::FastDivmod heads;
  int rows;  ///< tokens times heads
  DType dtype{};
};

}  // namespace fovea::gpu::portable::append
