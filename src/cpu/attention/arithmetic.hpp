// SPDX-License-Identifier: Apache-2.0
/// The arithmetic of the two products as a policy. F32Math is that of every instruction set; bf16 dot products have one of their own
/// (arithmetic_bf16.hpp).
#pragma once

#include "cpu/isa/storage.hpp"

namespace fovea::cpu::FOVEA_ISA {

/// f32 operands: one element of the contracted dimension at a time.
struct F32Math {
  using Operand = float;
  using Reg = Vec;                             // operands in a register
  static constexpr int kPair = 1;              // elements of the contracted dimension that lie side by side
  static constexpr int kStreamWidth = kLanes;  // elements of a row in one register

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
  FOVEA_INLINE void store_weights(Operand* p, const Vec (&weight)[kPair]) { store(F32{}, p, weight[0]); }

  /// Remembers whether every element was finite: x * 0 is NaN otherwise.
  struct Finite {
    Vec probe = zero();
    FOVEA_INLINE void look(Finite& finite, Reg a) { finite.probe = fma(a, zero(), finite.probe); }
    bool all() const { return reduce_add(probe) == 0.0f; }
  };

  /// One row of kLanes columns (kPair rows side by side in other arithmetics), `count` of them there.
  template <class S>
  FOVEA_INLINE void interleave(const void* const* rows, int column, int count, Operand* to, Finite& finite) {
    const auto* codes = static_cast<const typename S::Code*>(rows[0]) + column;
    Reg a;
    if (count == kLanes) {
      a = load(S{}, codes);
    } else {
      typename S::Code some[kLanes] = {};
      __builtin_memcpy(some, codes, static_cast<unsigned long>(count) * sizeof(typename S::Code));
      a = load(S{}, some);
    }
    Finite::look(finite, a);
    store(F32{}, to, a);
  }

  /// Elements [d, d + 8) of eight rows, to[element][panel][row].
  template <class S>
  FOVEA_INLINE void transpose(const void* const* rows, int d, Operand* to) {
    transpose_to<S>(rows, d, to, kPanelVectors * kLanes);
  }
};

}  // namespace fovea::cpu::FOVEA_ISA
