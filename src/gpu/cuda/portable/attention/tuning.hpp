// SPDX-License-Identifier: Apache-2.0
/// Tiles of the forward kernel by head dims and by the shared memory of a device.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "gpu/common/tuning_table.hpp"

namespace fovea::gpu::portable::attention {

struct Tuning {
  int head_dim_qk = 0, head_dim_v = 0;  ///< the largest that it takes; smaller ones are padded with zeros
  int warps = 4;
  int blocks = 2;  ///< of 16 query rows, of each warp: what it reads of K and V serves all of them
  int key_tile = 64;
  int stages = 1;  ///< key tiles in shared memory. With one, keys are loaded during the softmax, values during Q K^T
  bool queries_in_registers = false;
  int resident = 1;  ///< CTAs for which a multiprocessor's shared memory must suffice, for the row to be chosen

  constexpr int row_tile() const { return 16 * blocks * warps; }
  constexpr int query_bytes() const { return 2 * row_tile() * head_dim_qk; }
  constexpr int key_bytes() const { return 2 * key_tile * head_dim_qk; }
  constexpr int value_bytes() const { return 2 * key_tile * head_dim_v; }
  constexpr int shared_bytes() const { return query_bytes() + stages * (key_bytes() + value_bytes()) + kWorkBytes; }

  static constexpr int kWorkBytes = 128;  ///< for the work tile
};

/// Rows of equal head dims begin with the one for most shared memory. The figures are TFLOP/s on an H100, 4096 tokens, full masks, from
/// bench/results/nvidia-h100/2026-11-24-portable-attention-variants.json; devices with less shared memory were not measured.
inline constexpr auto kTunings = std::to_array<Named<Tuning>>({
    {"64", {64, 64, 4, 2, 128, 1, false, 1}},               // 294; 64 keys and queries in registers 268
    {"96", {96, 96, 4, 2, 64, 1, false, 1}},                // 313; two stages 320
    {"128_two_stages", {128, 128, 4, 2, 64, 2, false, 2}},  // 227 KB: two CTAs. 361
    {"128", {128, 128, 4, 2, 64, 1, false, 2}},             // 163 KB: two CTAs. 354; 32 keys 298; eight warps 290 to 346
    {"128_small", {128, 128, 4, 2, 32, 1, false, 1}},       // 99 KB: two CTAs; 64 KB: one
    {"192x128", {192, 128, 4, 2, 64, 1, false, 1}},         // 99 KB and 163 KB: one CTA; 227 KB: two. 376; 32 keys 337
    {"256_two_ctas", {256, 256, 4, 1, 64, 1, false, 2}},    // 227 KB: two CTAs. 314
    {"256", {256, 256, 8, 1, 64, 1, false, 1}},             // 163 KB: one CTA. 290
    {"256_small", {256, 256, 4, 1, 16, 1, false, 1}},       // 99 KB: two CTAs; 64 KB: one. 197
});

/// The first row that takes these head dims, both at most 256, on a device with `shared_bytes` for a CTA.
constexpr int tuning_index(std::int64_t head_dim_qk, std::int64_t head_dim_v, int shared_bytes) {
  int index = 0;
  for (const Tuning& row : kTunings) {
    if (row.head_dim_qk >= head_dim_qk && row.head_dim_v >= head_dim_v && row.resident * row.shared_bytes() <= shared_bytes) break;
    ++index;
  }
  return index;
}

/// CTAs that a multiprocessor runs at once: two have registers for four warps each.
constexpr int resident_ctas(const Tuning& row, int shared_bytes) {
  return std::clamp(std::min(8 / row.warps, shared_bytes / row.shared_bytes()), 1, 2);
}

}  // namespace fovea::gpu::portable::attention
