// SPDX-License-Identifier: Apache-2.0
/// The parameters of the kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "op/common/cache_view.hpp"

namespace fovea::gpu::portable::append {

inline constexpr int kThreads = 128;
/// Of a multiprocessor. With six, loads wait for quotients: 65536 rows to e4m3 take 170 us, with eight 160.
inline constexpr int kBlocks = 8;
inline constexpr int kPackBytes = 16;  ///< of a new row: one load of a thread
inline constexpr int kBatch = 4;       ///< packs of a row that a thread loads before it stores any

/// Elements of a pack. Each side has as many as its strides allow: a whole pack, or one.
constexpr int pack_of(std::size_t element_bytes) { return kPackBytes / static_cast<int>(element_bytes); }

/// K or V. Strides count elements.
struct Side {
  const void* rows;     // (token, kv_head, head_dim)
  void* cache;          // (block, page, kv_head, head_dim)
  const float* scales;  // (kv_head); null: nothing is divided
  std::int64_t row_stride, head_stride, scale_stride;
  detail::CacheStrides strides;
  std::int64_t packs_of_head;
  int threads;  ///< of one token: a power of two, at most kThreads
};

struct Params {
  Side sides[2];
  const std::int64_t* slot_mapping;  // (token)
  std::int64_t tokens, kv_heads, slots, page;
};

}  // namespace fovea::gpu::portable::append
