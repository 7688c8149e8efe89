// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fovea::gpu::cdna::merge {

inline constexpr int kWaves = 4;         ///< of a workgroup, each for one (row, head)
inline constexpr int kPartsOfPass = 64;  ///< a lane for each

template <class Pointer, class Numbers>
struct Tensor {
  Pointer out;  // (total_q, head, dv)
  Numbers lse;  // (total_q, head); may be null in the result
  std::int64_t out_row, out_head, lse_row, lse_head;
};

/// Sums of the earlier passes, for calls with more parts than one pass takes.
struct Carry {
  float* out = nullptr;      // (total_q, head, dv), not yet divided by sum
  float* largest = nullptr;  // (total_q, head)
  float* sum = nullptr;      // (total_q, head)
};

struct Params {
  Tensor<const void*, const float*> parts[kPartsOfPass];
  Tensor<void*, float*> result;
  Carry carry;
  std::int64_t cells;  // (row, head) pairs
  std::int64_t heads, head_dim_v;
  int part_count;
  bool first, last;  // whether this is the first or the last pass
};
static_assert(sizeof(Params) <= 4096);

}  // namespace fovea::gpu::cdna::merge
