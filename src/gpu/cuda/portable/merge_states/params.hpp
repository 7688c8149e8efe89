// SPDX-License-Identifier: Apache-2.0
/// The parameters of the kernel.
#pragma once

#include <cstdint>

namespace fovea::gpu::portable::merge {

inline constexpr int kThreads = 128;
inline constexpr int kBatch = 4;         ///< parts whose elements a lane loads before it uses any
inline constexpr int kColumns = 2;       ///< loads of a lane from one part: it works out addresses and weights once for both
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
  std::uint32_t cells, heads;  // cells: (row, head) pairs
  std::int64_t head_dim_v;
  int part_count;
  int lanes;         // of one (row, head): a power of two, at most 32
  bool first, last;  // whether this is the first or the last pass
};
static_assert(sizeof(Params) <= 4096);

/// So that a cell's number and its row and head have 32 bits: dividing 64 bits takes as long as merging two parts.
inline constexpr std::int64_t kMostCells = std::int64_t{1} << 31;

}  // namespace fovea::gpu::portable::merge
