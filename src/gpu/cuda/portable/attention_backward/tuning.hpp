// SPDX-License-Identifier: Apache-2.0
/// Tiles of the backward kernels by head dims and by the shared memory of a device.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "gpu/common/tuning_table.hpp"

namespace fovea::gpu::portable::attention_backward {

inline constexpr int kWarps = 4;  // of a CTA

/// Gradients that a kernel computes: those of its rows.
enum class Gradients { dq, dk_dv, dk, dv };

/// A CTA keeps rows of two tensors and their gradient, and reads columns of two tensors tile by tile.
struct Tiles {
  int blocks = 1;    ///< of 16 rows, of each warp: what it reads of the columns serves all of them
  int columns = 32;  ///< of a tile
  int stages = 1;    ///< tiles of columns in shared memory

  constexpr int rows() const { return 16 * kWarps * blocks; }
};

/// The kernel of all three gradients. A CTA keeps keys, and reads tiles of queries. A pair of warps
/// has 32 keys. Each warp has half of a tile's queries for scores, half of the head dims for dk, dv.
struct Fused {
  int key_warps = 0;      ///< pairs; none where shared memory or registers do not suffice
  int warp_queries = 32;  ///< half a tile
  int ds_stages = 2;      ///< tiles of ds: with two, warps meet once a tile

  constexpr int keys() const { return 32 * key_warps; }
  constexpr int queries() const { return 2 * warp_queries; }
  /// Keys, two tiles of queries, p and ds.
  constexpr int shared_bytes(int head_dims) const {
    if (key_warps == 0) return 0;
    const int scores = 2 * keys() * queries() * (1 + ds_stages);
    return 2 * head_dims * (keys() + 2 * queries()) + scores + kOtherBytes;
  }

  static constexpr int kOtherBytes = 2304;  ///< at most: the work tile, and numbers of the queries
};

struct Tuning {
  int head_dim_qk = 0, head_dim_v = 0;  ///< the largest that it takes; smaller ones are padded with zeros
  Tiles queries{};                      ///< rows are queries, columns are keys: dq
  Tiles keys{};                         ///< the other way round: dk and dv
  bool keys_at_once = true;             ///< dk and dv by one kernel. Else by two, whose registers hold one of them
  int resident = 1;                     ///< CTAs for which a multiprocessor's shared memory must suffice, for the row to be chosen
  Fused fused{};                        ///< unless the order of sums must be fixed; one CTA must fit

  constexpr int shared_bytes() const { return std::max(bytes_of(queries), bytes_of(keys)); }
  constexpr int bytes_of(const Tiles& tiles) const {
    return 2 * (head_dim_qk + head_dim_v) * (tiles.rows() + tiles.stages * tiles.columns) + kOtherBytes;
  }

  static constexpr int kOtherBytes = 1280;   ///< at most: the work tile, and numbers of the columns' queries
  static constexpr int kBiasedBytes = 2304;  ///< more, at most, with ALiBi, a bias or dropout: the keys that dropout leaves
};

/// Rows of equal head dims begin with the one for most shared memory. Those for 227 KB are the best variants on an H100
/// (bench/results/nvidia-h100/2026-11-24-portable-backward-kernels.json); devices with less shared memory were not measured.
inline constexpr auto kTunings = std::to_array<Named<Tuning>>({
    {"64", {64, 64, {2, 64, 2}, {2, 32, 2}, true, 2, {4, 64, 2}}},            // 227 KB: two CTAs; fused, one
    {"64_medium", {64, 64, {2, 64, 2}, {2, 32, 2}, true, 2, {4, 64, 1}}},     // 163 KB: the same
    {"64_small", {64, 64, {1, 64, 2}, {2, 32, 1}, true, 1, {4, 32, 1}}},      // 99 KB: two CTAs; fused, one
    {"128", {128, 128, {2, 32, 2}, {1, 64, 2}, true, 2, {4, 32, 2}}},         // 227 KB: two CTAs; fused, one
    {"128_medium", {128, 128, {1, 64, 1}, {1, 32, 2}, true, 2, {4, 32, 1}}},  // 163 KB: the same
    {"128_small", {128, 128, {1, 32, 1}, {1, 32, 1}, true, 1}},               // 99 KB: two CTAs
    {"192x128", {192, 128, {1, 64, 1}, {1, 32, 2}, true, 1}},                 // 163 KB and 99 KB: one CTA; 227 KB: two
    {"256", {256, 256, {1, 32, 1}, {1, 32, 1}, false, 1}},                    // 163 KB and 99 KB: one CTA; 227 KB: two
});

/// The first row that takes these head dims, both at most 256, on a device with `shared_bytes` for a CTA.
constexpr int tuning_index(std::int64_t head_dim_qk, std::int64_t head_dim_v, int shared_bytes) {
  constexpr int kReserved = 1024;  // by the system, for each CTA; `shared_bytes` is without it
  int index = 0;
  for (const Tuning& row : kTunings) {
    const bool resident = row.resident * (row.shared_bytes() + kReserved) <= shared_bytes + kReserved;
    const bool fits = row.fused.shared_bytes(row.head_dim_qk + row.head_dim_v) <= shared_bytes;
    if (row.head_dim_qk >= head_dim_qk && row.head_dim_v >= head_dim_v && resident && fits) break;
    ++index;
  }
  return index;
}

}  // namespace fovea::gpu::portable::attention_backward
