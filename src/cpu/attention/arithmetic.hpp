// SPDX-License-Identifier: Apache-2.0
/// The arithmetic of the two matrix products as a policy. F32Math works on every instruction set; bf16 dot products have a policy of their
/// own (isa/avx512bf16.hpp).
#pragma once

#include "cpu/isa/storage.hpp"
#include "cpu/kernels.hpp"

namespace fovea::cpu::FOVEA_ISA {

/// Prefetches `bytes` of the row from `offset` on. If `bytes` is less than a cache line, only the call at the begin of a line prefetches.
FOVEA_INLINE void fetch(const char* row, std::int64_t offset, int bytes) {
  if (bytes < kLine && offset % kLine != 0) return;
  for (int i = 0; i < bytes; i += kLine) prefetch(row + offset + i);
}

/// 2 * kLanes elements. load_two(S) may unpack them in another order; load_two_as(S) and store_two_as(S) move f32 elements in that order.
template <class S>
FOVEA_INLINE Two load_two(S storage, const void* p) {
  return {load(storage, p), load(storage, static_cast<const typename S::Code*>(p) + kLanes)};
}
template <class S>
FOVEA_INLINE void store_two(S storage, void* p, Two a) {
  store(storage, p, a.first);
  store(storage, static_cast<typename S::Code*>(p) + kLanes, a.second);
}
template <class S>
FOVEA_INLINE Two load_two_as(S, const float* p) {
  return {load(F32{}, p), load(F32{}, p + kLanes)};
}
template <class S>
FOVEA_INLINE void store_two_as(S, float* p, Two a) {
  store(F32{}, p, a.first);
  store(F32{}, p + kLanes, a.second);
}

/// f32 operands: one element of the contracted dimension at a time.
struct F32Math {
  using Operand = float;
  using Reg = Vec;
  static constexpr int kPair = 1;           // elements of the contracted dimension that lie side by side
  static constexpr int kRegWidth = kLanes;  // operands in a register
  using StreamReg = Two;                    // a piece of a cache row, in the order in which its storage unpacks best
  static constexpr int kStreamWidth = 2 * kLanes;

  FOVEA_INLINE Reg none() { return zero(); }
  FOVEA_INLINE Reg repeat(const Operand* p) { return broadcast(p); }
  FOVEA_INLINE Reg load_operands(const Operand* p) { return load(F32{}, p); }
  FOVEA_INLINE void store_operands(Operand* p, Reg a) { store(F32{}, p, a); }
  FOVEA_INLINE Reg negated(Reg a) { return sub(splat(-0.0f), a); }
  FOVEA_INLINE Vec multiply_add(Reg a, Reg b, Vec c) { return fma(a, b, c); }
  template <class S>
  FOVEA_INLINE Reg load_row(S storage, const void* p) {
    return load(storage, p);
  }
  template <class S>
  FOVEA_INLINE StreamReg load_stream(S storage, const void* p) {
    return load_two(storage, p);
  }
  FOVEA_INLINE StreamReg load_stream_q(const Operand* p) {
    const Two a = load_two(F32{}, p);
    return {keep(a.first), keep(a.second)};
  }
  FOVEA_INLINE Vec stream_multiply_add(StreamReg a, StreamReg b, Vec c) { return fma(a.second, b.second, fma(a.first, b.first, c)); }
  FOVEA_INLINE void store_weights(Operand* p, const Vec (&weight)[kPair]) { store(F32{}, p, weight[0]); }

  /// Remembers whether every element was finite: x * 0 is NaN otherwise.
  struct Finite {
    Vec probe = zero();
    FOVEA_INLINE void look(Finite& finite, Reg a) { finite.probe = fma(a, zero(), finite.probe); }
    bool all() const { return reduce_add(probe) == 0.0f; }
  };

  /// kLanes columns of one row. Other arithmetics take kPair rows and place them side by side.
  template <class S>
  FOVEA_INLINE void interleave(const void* const* rows, int column, Operand* to, Finite& finite) {
    const Reg a = load(S{}, static_cast<const typename S::Code*>(rows[0]) + column);
    Finite::look(finite, a);
    store(F32{}, to, a);
  }

  /// Elements [d, d + 8) of eight rows, to[element][panel][row].
  template <class S>
  FOVEA_INLINE void transpose(const void* const* rows, int d, Operand* to) {
    transpose_to<S>(rows, d, to, kPanelVectors * kLanes);
  }

  /// Elements [d, d + kTransposed) of eight rows of operands: to[element * stride + row].
  static constexpr int kTransposed = 8;
  FOVEA_INLINE void transpose_operands(const void* const* rows, int d, Operand* to, std::int64_t stride) {
    transpose_to<F32>(rows, d, to, static_cast<int>(stride));
  }
};

}  // namespace fovea::cpu::FOVEA_ISA
