// SPDX-License-Identifier: Apache-2.0
/// Tiles of the 8-bit kernel by head dim and by the shared memory of a device.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "gpu/common/tuning_table.hpp"

namespace fovea::gpu::portable::quantized_attention {

struct Tuning {
  int head_dim = 0;  ///< of queries, keys and values
  int warps = 4;
  int blocks = 2;  ///< of 16 query rows, of each warp: what it reads of K and V serves all of them
  int key_tile = 64;
  int stages = 1;    ///< key tiles in shared memory. With one, keys are loaded during the softmax, values during Q K^T
  int resident = 1;  ///< CTAs for which a multiprocessor's shared memory must suffice, for the row to be chosen

  constexpr int row_tile() const { return 16 * blocks * warps; }
  /// A row of codes in shared memory, which is swizzled in spans of 64 or 128 bytes.
  constexpr int code_row_bytes() const { return (head_dim + 63) / 64 * 64; }
  constexpr int value_row_bytes(int value_size) const { return value_size == 1 ? code_row_bytes() : 2 * head_dim; }
  constexpr int query_bytes() const { return row_tile() * code_row_bytes(); }
  constexpr int key_bytes() const { return key_tile * code_row_bytes(); }
  constexpr int value_bytes(int value_size) const { return key_tile * value_row_bytes(value_size); }
  constexpr int shared_bytes(int value_size) const { return query_bytes() + stages * (key_bytes() + value_bytes(value_size)) + kWorkBytes; }

  static constexpr int kWorkBytes = 128;  ///< for the work tile
};

/// Rows of equal head dims begin with the one for most shared memory. A key tile has one scale for each lane: 64 keys at most.
inline constexpr auto kTunings = std::to_array<Named<Tuning>>({
    {"64", {64, 4, 2, 64, 1, 1}},          // not measured against others
    {"96", {96, 4, 2, 64, 1, 1}},          // nor this one
    {"128", {128, 4, 2, 64, 2, 2}},        // 163 KB and more: two CTAs
    {"128_small", {128, 4, 2, 32, 1, 1}},  // 64 KB and 99 KB: two CTAs
    {"256", {256, 4, 1, 32, 1, 1}},        // 64 KB: one CTA; else two
});

/// The first row for this head dim on a device with `shared_bytes` for a CTA.
constexpr int tuning_index(std::int64_t head_dim, int value_size, int shared_bytes) {
  int index = 0;
  for (const Tuning& row : kTunings) {
    if (row.head_dim == head_dim && row.resident * row.shared_bytes(value_size) <= shared_bytes) break;
    ++index;
  }
  return index;
}

}  // namespace fovea::gpu::portable::quantized_attention
