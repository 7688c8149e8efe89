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
inline constexpr int kLaneValues = 16;    ///< neighbours of a row that a lane takes
inline constexpr int kMostRowLanes = 16;  ///< a power of two of lanes shares a row
inline constexpr int kWidestRow = kMostRowLanes * kLaneValues;

/// K or V. Strides of rows count elements, those of the caches bytes.
struct FormatSide {
  const void* rows;     // (token, kv_head, head_dim)
  std::byte* cache;     // (block, page, kv_head, bytes of codes)
  std::byte* scales;    // (block, page, kv_head) or (.., groups)
  const float* global;  // (kv_head), or null
  std::int64_t row_stride, head_stride, global_stride;
  detail::CacheStrides strides, scale_strides;
  int head_dim;
  int store_bytes;   ///< at once: the codes of a lane, 4 or 1, as rows of the cache are aligned
  bool load_packs;   ///< rows are whole packs that lie at multiples of 16 bytes
  bool half_scales;  ///< scales are f16
};

struct FormatParams {
  FormatSide sides[2];  // blockIdx.y chooses
  const std::int64_t* slot_mapping;
  std::int64_t slots, page;
  detail::FastDivmod heads;
  int rows;       ///< tokens times heads
  int lanes_log;  ///< of the lanes of a row
};

}  // namespace fovea::gpu::portable::append
