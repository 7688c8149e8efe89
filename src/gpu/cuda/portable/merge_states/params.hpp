// SPDX-License-Identifier: Apache-2.0
/// The parameters of the kernel.
#pragma once

#include <cstdint>

namespace fovea::gpu::portable::merge {

inline constexpr int kWarps = 4;
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kPartsOfPass = 64;  ///< limited by the 4 KiB of kernel parameters that hold Params
inline constexpr int kPackBytes = 16;    ///< one load of a lane

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

}  // namespace fovea::gpu::portable::merge
