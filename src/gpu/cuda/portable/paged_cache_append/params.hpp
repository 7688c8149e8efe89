// SPDX-License-Identifier: Apache-2.0
/// The parameters of the kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "op/common/division.hpp"
#include "op/common/strides.hpp"

namespace fovea::gpu::portable::append {

inline constexpr int kThreads = 128;   ///< at most, of a block
inline constexpr int kTokens = 2;      ///< whose packs a thread loads before it stores any
inline constexpr int kPackBytes = 16;  ///< of a new row: one load of a thread

/// Elements of a pack. Each side has as many as its strides allow: a whole pack, or one.
constexpr int pack_of(std::size_t element_bytes) { return kPackBytes / static_cast<int>(element_bytes); }

/// K or V. Strides count elements.
struct Side {
  const void* rows;     // (token, kv_head, head_dim)
  void* cache;          // (block, page, kv_head, head_dim)
  const float* scales;  // (kv_head); null: nothing is divided
  std::int64_t row_stride, head_stride, scale_stride;
  detail::CacheStrides strides;
  int packs;  ///< of a token's row, all heads
  detail::FastDivmod packs_of_head;
};

struct Params {
  Side sides[2];
  const std::int64_t* slot_mapping;  // (token)
  std::int64_t tokens, slots, page;
  detail::FastDivmod blocks_of_row;  ///< each takes as many packs of a row as it has columns of threads
};

}  // namespace fovea::gpu::portable::append
