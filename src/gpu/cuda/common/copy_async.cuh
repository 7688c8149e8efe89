// SPDX-License-Identifier: Apache-2.0
/// Asynchronous copies from global to shared memory (cp.async), in groups; copies of a tile's rows by all threads of a CTA.
/// Turing, which has no cp.async, loads and stores at once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "gpu/cuda/common/shared.cuh"
#include "gpu/cuda/common/target.cuh"

namespace fovea::gpu {

/// Copies an aligned chunk of 16 bytes. Without `present` it stores zeros and reads nothing.
__device__ inline void copy_async(std::uint32_t shared, const void* from, bool present) {
  if constexpr (kTarget >= 80) {
    const int bytes = present ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(__cvta_generic_to_global(from)), "r"(bytes) : "memory");
  } else {
    store_shared_128(shared, present ? *static_cast<const uint4*>(from) : uint4{});
  }
}
/// Copies the first `bytes` (0, 8 or 16) of a chunk, then zeros. It reads nothing else.
__device__ inline void copy_async_part(std::uint32_t shared, const void* from, int bytes) {
  if constexpr (kTarget >= 80) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(__cvta_generic_to_global(from)), "r"(bytes) : "memory");
  } else {
    uint4 chunk{};
    if (bytes == 16) chunk = *static_cast<const uint4*>(from);
    if (bytes == 8) {
      const auto half = *static_cast<const uint2*>(from);
      chunk = {half.x, half.y, 0, 0};
    }
    store_shared_128(shared, chunk);
  }
}
/// The same for a chunk that is present.
__device__ inline void copy_async(std::uint32_t shared, const void* from) {
  if constexpr (kTarget >= 80) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(__cvta_generic_to_global(from)) : "memory");
  } else {
    store_shared_128(shared, *static_cast<const uint4*>(from));
  }
}
/// The same for four bytes.
__device__ inline void copy_async_word(std::uint32_t shared, const void* from) {
  if constexpr (kTarget >= 80) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(__cvta_generic_to_global(from)) : "memory");
  } else {
    store_shared_32(shared, *static_cast<const std::uint32_t*>(from));
  }
}
/// Copies the first `bytes` of a chunk that is aligned to its elements, then zeros, synchronously. Unit: unsigned integer of
/// an element's size.
template <class Unit>
__device__ inline void copy_units(std::uint32_t shared, const void* from, int bytes) {
  const auto* units = static_cast<const Unit*>(from);
  constexpr int kUnits = 4 / sizeof(Unit);  // of a word
  std::uint32_t words[4] = {};
#pragma unroll
  for (int i = 0; i < 4 * kUnits; ++i) {
    if (i * static_cast<int>(sizeof(Unit)) < bytes) words[i / kUnits] |= std::uint32_t{units[i]} << (i % kUnits * 8 * sizeof(Unit));
  }
  store_shared_128(shared, {words[0], words[1], words[2], words[3]});
}
/// The same for a chunk of elements of one or two bytes.
template <class Element>
__device__ inline void copy_elements(std::uint32_t shared, const Element* from, bool present) {
  copy_units<std::conditional_t<sizeof(Element) == 1, std::uint8_t, std::uint16_t>>(shared, from, present ? 16 : 0);
}
/// Ends a group of copies.
__device__ inline void copy_async_commit() {
  if constexpr (kTarget >= 80) asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits for the thread's copies, except those of the last kPending groups.
template <int kPending>
__device__ inline void copy_async_wait() {
  if constexpr (kTarget >= 80) asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// The same for a number of groups that is not constant, up to 2.
__device__ inline void copy_async_wait(int pending) {
  if (pending == 2) {
    copy_async_wait<2>();
  } else if (pending == 1) {
    copy_async_wait<1>();
  } else {
    copy_async_wait<0>();
  }
}

/// Copies rows into SwizzledRows<kColumns> by kThreads threads. Columns from kUsed on need not be written.
template <int kColumns, int kRows, int kThreads, int kUsed = kColumns>
class RowCopy {
 public:
  /// Rows from `valid` (1 or more) on and columns from `columns` (whole chunks) on become zeros. They are not read, and no
  /// address is outside of the tensor. `row_at(row)` points to a row's first element, of one or two bytes. `aligned`: all
  /// rows are aligned to 16 bytes; others are read by single elements.
  template <class RowAt>
  __device__ __forceinline__ void operator()(std::uint32_t to, int valid, int columns, bool aligned, const RowAt& row_at) const {
    constexpr int kSize = sizeof(*row_at(0)), kOfChunk = 16 / kSize;
    if (aligned && valid >= kRows && kSize * columns == 2 * kUsed) {
#pragma unroll
      for (int i = 0; i < kRows / kStep; ++i) {
        const auto* from = row_at(row(i)) + kOfChunk * chunk();
#pragma unroll
        for (int span = 0; span < Layout::kSpans; ++span) {
          if (kUsed < kColumns && chunk() + span * Layout::kSpanChunks >= kUsed / 8) continue;
          copy_async(place(to, i, span), from + span * Layout::kSpanBytes / kSize);
        }
      }
      return;
    }
#pragma unroll 1
    for (int i = 0; i < kRows / kStep; ++i) {
      const auto* from = row_at(std::min(row(i), valid - 1));
#pragma unroll 1
      for (int span = 0; span < Layout::kSpans; ++span) {
        const int column = kOfChunk * (chunk() + span * Layout::kSpanChunks);
        const bool present = row(i) < valid && column < columns;
        const auto* chunk_from = from + (column < columns ? column : 0);
        if (aligned) {
          copy_async(place(to, i, span), chunk_from, present);
        } else {
          copy_elements(place(to, i, span), chunk_from, present);
        }
      }
    }
  }

 private:
  using Layout = SwizzledRows<kColumns>;
  static constexpr int kStep = kThreads / Layout::kSpanChunks;  // rows that threads copy at once
  static_assert(kRows % kStep == 0 && kStep % 8 == 0);

  /// This thread's row in the i-th step.
  static __device__ int row(int i) { return static_cast<int>(threadIdx.x) / Layout::kSpanChunks + i * kStep; }
  static __device__ int chunk() { return static_cast<int>(threadIdx.x) % Layout::kSpanChunks; }
  static __device__ std::uint32_t place(std::uint32_t to, int i, int span) {
    return to + static_cast<std::uint32_t>(Layout::offset(row(0), chunk()) + i * kStep * Layout::kRowBytes + span * Layout::kSpanBytes);
  }
};

}  // namespace fovea::gpu
