// SPDX-License-Identifier: Apache-2.0
/// Tiles of the kernels for block masks, by head dims, blocks and the shared memory of a device. A row is one kernel.
#pragma once

#include <array>
#include <cstdint>

#include "gpu/cuda/portable/attention_backward/tuning.hpp"

namespace fovea::gpu::portable::block_attention_backward {

using attention_backward::Gradients;
using attention_backward::Tiles;

struct Tuning {
  int head_dim = 0;  ///< the largest that it takes, of both; smaller ones are padded with zeros
  Gradients of{};
  Tiles tiles{};     ///< rows divide a block
  int resident = 1;  ///< CTAs for which a multiprocessor's shared memory must suffice, for the row to be chosen

  constexpr attention_backward::Tuning dense() const {
    return {.head_dim_qk = head_dim, .head_dim_v = head_dim, .queries = tiles, .keys = tiles};
  }
  constexpr int shared_bytes() const { return dense().shared_bytes(); }
};

/// The best row of equal head dims and gradients comes first. Every last one fits 99 KB, and takes all blocks. README.md has what an H100
/// measured; devices with less shared memory were not measured.
inline constexpr auto kTunings = std::to_array<Named<Tuning>>({
    {"64_dq_tall", {64, Gradients::dq, {2, 64, 2}, 2}},
    {"64_dq", {64, Gradients::dq, {1, 64, 2}}},
    {"64_keys", {64, Gradients::dk_dv, {1, 64, 2}}},
    {"128_dq_tall", {128, Gradients::dq, {2, 32, 2}, 2}},
    {"128_dq", {128, Gradients::dq, {1, 64, 2}, 2}},
    {"128_dq_small", {128, Gradients::dq, {1, 32, 1}}},
    {"128_keys", {128, Gradients::dk_dv, {1, 64, 2}, 2}},
    {"128_keys_medium", {128, Gradients::dk_dv, {1, 64, 1}, 2}},
    {"128_keys_small", {128, Gradients::dk_dv, {1, 32, 1}}},
    {"256_dq", {256, Gradients::dq, {1, 32, 1}}},
    {"256_dk", {256, Gradients::dk, {1, 32, 1}}},  // registers hold one of them
    {"256_dv", {256, Gradients::dv, {1, 32, 1}}},
});

/// Whether dk and dv are of one kernel.
constexpr bool keys_at_once(std::int64_t head_dim) { return head_dim <= 128; }

/// The row for a gradient. `block`: queries or keys, a multiple of 64. Head dims are at most 256.
constexpr int tuning_index(Gradients of, std::int64_t head_dim, std::int64_t block, int shared_bytes) {
  constexpr int kReserved = 1024;  // by the system, for each CTA; `shared_bytes` is without it
  int index = 0;
  for (const Tuning& row : kTunings) {
    const bool resident = row.resident * (row.shared_bytes() + kReserved) <= shared_bytes + kReserved;
    if (row.of == of && row.head_dim >= head_dim && block % row.tiles.rows() == 0 && resident) break;
    ++index;
  }
  return index;
}

}  // namespace fovea::gpu::portable::block_attention_backward
