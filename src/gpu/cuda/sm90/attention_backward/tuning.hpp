// SPDX-License-Identifier: Apache-2.0
/// Kernels and tiles of the backward pass by head dims.
#pragma once

#include <array>
#include <cstdint>

#include "gpu/common/tuning_table.hpp"

namespace fovea::gpu::sm90::attention_backward {

struct Tuning {
  int head_dim_qk = 0, head_dim_v = 0;  ///< the largest that it takes; smaller ones are padded with zeros
  int key_tile = 128;                   ///< keys of a CTA that computes dk and dv
  // The separate kernel of dq computes scores again. A CTA has 128 queries.
  int dq_key_tile = 0, dq_key_stages = 0, dq_value_stages = 0;

  /// Then dk and dv of 64 keys fill two warpgroups: one has S and dV, the other dP and dK.
  constexpr bool separate_dq() const { return dq_key_tile > 0; }
  /// Score warpgroups compute dq too, because a dQ warpgroup would leave them too few registers.
  constexpr bool dq_in_score_warpgroups() const { return head_dim_qk > 128 && !separate_dq(); }
};

/// Narrowest first. Separate kernels issue 7/5 of the MMAs of one.
inline constexpr auto kTunings = std::to_array<Named<Tuning>>({
    {"64", {64, 64}},
    {"96", {96, 96}},
    {"128", {128, 128}},
    {"192x128", {192, 128}},
    {"192", {192, 192, 64, 80, 2, 2}},
    {"256", {256, 256, 64, 64, 2, 1}},
});

/// The first row that takes these head dims, both at most 256.
constexpr int tuning_index(std::int64_t head_dim_qk, std::int64_t head_dim_v) {
  int index = 0;
  for (const Tuning& row : kTunings) {
    if (row.head_dim_qk >= head_dim_qk && row.head_dim_v >= head_dim_v) break;
    ++index;
  }
  return index;
}

}  // namespace fovea::gpu::sm90::attention_backward
