// SPDX-License-Identifier: Apache-2.0
/// The parameters of the kernel.
#pragma once

#include <cstdint>

namespace fovea::gpu::portable::merge {

inline constexpr int kWarps = 4;
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kPartsOfPass = 64;  ///< all of Params must fit into the 4 KiB that kernel parameters have
inline constexpr int kPackBytes = 16;    ///< one load of a lane

template <class Pointer, class Numbers>
struct Tensor {
  Pointer out;  // (total_q, head, dv)
  Numbers lse;  // (total_q, head); of the result it may be null
  std::int64_t out_row, out_head, lse_row, lse_head;
};

/// Sums of the passes so far, for calls of more parts than one pass takes.
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
  bool first, last;  // of the passes
};
static_assert(sizeof(Params) <= 4096);

}  // namespace fovea::gpu::portable::merge
