// SPDX-License-Identifier: Apache-2.0
/// int8 arithmetic of the instruction sets that have no integer products worth their packing. Included behind their vectors.
#pragma once

#include <cstdint>

#include "cpu/isa/storage.hpp"

namespace fovea::cpu::FOVEA_ISA {

/// int8 products in f32, where they and their sums (below 2^24) are exact.
struct Int8Math {
  using Operand = float;
  using Reg = Vec;
  static constexpr int kPair = 1;
  static constexpr int kRegWidth = kLanes;

  static constexpr const char* kArithmetic = "int8 scores, f32 values,";

  FOVEA_INLINE void prepare(const Operand*, int, std::int32_t*) {}
  FOVEA_INLINE Reg begin(const std::int32_t*) { return zero(); }
  FOVEA_INLINE Reg repeat(const Operand* p) { return broadcast(p); }
  FOVEA_INLINE Reg load_operands(const Operand* p) { return load(F32{}, p); }
  FOVEA_INLINE void store_operands(Operand* p, Reg a) { store(F32{}, p, a); }
  FOVEA_INLINE Reg negated(Reg a) { return sub(splat(-0.0f), a); }
  FOVEA_INLINE Reg multiply_add(Reg a, Reg b, Reg c) { return fma(a, b, c); }
  FOVEA_INLINE Vec total(Reg sum) { return sum; }
  FOVEA_INLINE Reg load_row(I8 storage, const void* p) { return load(storage, p); }
  template <class S>
  FOVEA_INLINE void transpose(const void* const* rows, int d, Operand* to) {
    transpose_to<S>(rows, d, to, kPanelVectors * kLanes);
  }
};

}  // namespace fovea::cpu::FOVEA_ISA
