// SPDX-License-Identifier: Apache-2.0
/// The parameters of the kernels.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fovea::gpu::portable::conversion {

inline constexpr int kWarps = 4;
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kChunkBytes = 16;  ///< bytes of a row that a lane moves at once
inline constexpr int kLineBytes = 128;  ///< of the device's caches

/// Tokens that share a warp. A token has as many lanes as the largest group with one scale has chunks: 16 for 16-bit values.
constexpr int tokens_of_warp(std::size_t element_bytes) { return static_cast<int>(4 / element_bytes); }

/// Byte offsets of the parts of a token in its block.
struct Layout {
  std::int64_t record = 0;                           ///< from the codes of a token to those of the next
  std::int64_t scales_begin = 0, scales_record = 0;  ///< of the first token, and from token to token
  std::int64_t rope_begin = 0;                       ///< from the codes of a token to its rope
};

template <class Rows, class Cache>
struct Params {
  Rows rows;                               // (tokens, codes + rope)
  Cache cache;                             // (blocks, page, bytes of a token); planar formats: (blocks, bytes of a block)
  const std::int64_t* slot_mapping;        // (tokens)
  std::int64_t tokens, row_stride;         // bytes
  std::int64_t slots, page, block_stride;  // bytes
  Layout layout;
  bool exact;  // ScaleRule::exact
};
using QuantizeParams = Params<const std::byte*, std::byte*>;
using DequantizeParams = Params<std::byte*, const std::byte*>;

}  // namespace fovea::gpu::portable::conversion
