// SPDX-License-Identifier: Apache-2.0
/// Names that the instruction-set layers share. These headers are compiled once per instruction set, each time into another namespace
/// (FOVEA_ISA). They must not instantiate templates of the standard library: the linker could keep a wide object's copy for all.
#pragma once

#include <cstdint>

#define FOVEA_INLINE [[maybe_unused]] static inline __attribute__((always_inline))

namespace fovea::cpu::FOVEA_ISA {

/// Tags of the storage types. kIndex is the row in the kernel tables and the value of the DType.
struct F32 {
  using Code = float;
  static constexpr int kIndex = 0;
};
struct F16 {
  using Code = std::uint16_t;
  static constexpr int kIndex = 1;
};
struct BF16 {
  using Code = std::uint16_t;
  static constexpr int kIndex = 2;
};
struct E4M3 {
  using Code = std::uint8_t;
  static constexpr int kIndex = 3;
};
struct I8 {
  using Code = std::int8_t;
  static constexpr int kIndex = 4;
};

}  // namespace fovea::cpu::FOVEA_ISA
