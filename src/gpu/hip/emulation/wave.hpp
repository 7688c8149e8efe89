// SPDX-License-Identifier: Apache-2.0
/// The host's side of gpu/hip/cdna/wave.hpp, which says what each function does.
#pragma once

#include <algorithm>
#include <cstring>

#include "gpu/hip/emulation/machine.hpp"
#include "gpu/hip/prelude.hpp"
#include "op/common/numeric.hpp"

namespace fovea::gpu::cdna {

inline int thread() { return emulation::work_item().thread; }
inline int lane() { return thread() % kLanes; }
inline int workgroup_x() { return emulation::work_item().workgroup[0]; }
inline int workgroup_y() { return emulation::work_item().workgroup[1]; }
inline int workgroup_z() { return emulation::work_item().workgroup[2]; }

/// `Operation` is the lane's operand and result; its `resolve(lanes)` computes those of the wave.
template <class Operation>
void collective(const char* name, Operation& own) {
  emulation::wait_for_wave(
      name,
      [](void* const(&operands)[kLanes]) {
        Operation* lanes[kLanes];
        for (int l = 0; l < kLanes; ++l) lanes[l] = static_cast<Operation*>(operands[l]);
        Operation::resolve(lanes);
      },
      &own);
}

/// A value from another lane.
template <class T>
struct Exchange {
  T value, result;
  int from;
  static void resolve(Exchange* (&lanes)[kLanes]) {
    for (Exchange* lane : lanes) lane->result = lanes[lane->from]->value;
  }
};

template <class T>
T exchange(const char* name, T x, int from) {
  if (from < 0 || from >= kLanes) emulation::fail(std::string(name) + ": there is no lane " + std::to_string(from));
  Exchange<T> own{x, x, from};
  collective(name, own);
  return own.result;
}

inline float of_lane_xor_16(float x) { return exchange("of_lane_xor_16", x, lane() ^ 16); }
inline float of_lane_xor(float x, int mask) { return exchange("of_lane_xor", x, lane() ^ mask); }
inline float of_lane_xor_32(float x) { return exchange("of_lane_xor_32", x, lane() ^ 32); }

/// The arguments that all lanes must agree on.
struct Uniform {
  const char* name;
  int value;
  static void resolve(Uniform* (&lanes)[kLanes]) {
    for (const Uniform* lane : lanes) {
      if (lane->value != lanes[0]->value) emulation::fail(std::string(lane->name) + ": the lanes have different values");
    }
  }
};
inline int uniform(int x) {
  Uniform own{"uniform", x};
  collective("uniform", own);
  return x;
}
inline int of_lane(int x, int from) {
  Uniform same{"of_lane", from};
  collective("of_lane", same);
  return exchange("of_lane", x, from);
}

struct Ballot {
  bool condition;
  std::uint64_t result;
  static void resolve(Ballot* (&lanes)[kLanes]) {
    std::uint64_t all = 0;
    for (int l = 0; l < kLanes; ++l) all |= std::uint64_t{lanes[l]->condition} << l;
    for (Ballot* lane : lanes) lane->result = all;
  }
};
inline std::uint64_t ballot(bool condition) {
  Ballot own{condition, 0};
  collective("ballot", own);
  return own.result;
}

/// The lane that a DPP control names for lane `to`, or -1: the Vega and CDNA instruction set guides, "DPP_ENUM".
constexpr int dpp_source(int control, int to) {
  const int row = to / 16, in_row = to % 16;
  if (control > 0x110 && control <= 0x11f) return in_row >= control - 0x110 ? to - (control - 0x110) : -1;  // row_shr:n
  if (control == 0x142) return row > 0 ? 16 * row - 1 : -1;                                                 // row_bcast:15
  if (control == 0x143) return row > 1 ? 31 : -1;                                                           // row_bcast:31
  return -1;
}
template <int kControl, int kRows>
int dpp(int old, int x) {
  static_assert((kControl > 0x110 && kControl <= 0x11f) || kControl == 0x142 || kControl == 0x143);
  const int from = dpp_source(kControl, lane());
  const int got = exchange("dpp", x, std::max(from, 0));
  return from < 0 || (kRows >> lane() / 16 & 1) == 0 ? old : got;
}

struct F16Product {
  static float f32(short bits) { return detail::f32_from_f16(static_cast<std::uint16_t>(bits)); }
};
struct Bf16Product {
  static float f32(short bits) { return detail::f32_from_bf16(static_cast<std::uint16_t>(bits)); }
};

/// The layouts stand in wave.hpp; tests/hip/lane_layout_test.cpp holds them against AMD's tables.
template <class Type>
struct Product {
  Short4 a, b;
  Float4 d;
  static void resolve(Product* (&lanes)[kLanes]) {
    float a[16][16], b[16][16];  // a[i][k], b[j][k]
    for (int l = 0; l < kLanes; ++l) {
      for (int e = 0; e < 4; ++e) {
        a[l % 16][4 * (l / 16) + e] = Type::f32(lanes[l]->a[e]);
        b[l % 16][4 * (l / 16) + e] = Type::f32(lanes[l]->b[e]);
      }
    }
    for (int l = 0; l < kLanes; ++l) {
      for (int e = 0; e < 4; ++e) {
        float sum = lanes[l]->d[e];
        for (int k = 0; k < 16; ++k) sum += a[4 * (l / 16) + e][k] * b[l % 16][k];
        lanes[l]->d[e] = sum;
      }
    }
  }
};
template <class Type>
Float4 multiply_add(const char* name, Short4 a, Short4 b, Float4 d) {
  Product<Type> own{a, b, d};
  collective(name, own);
  return own.d;
}
inline Float4 multiply_add_f16(Short4 a, Short4 b, Float4 d) { return multiply_add<F16Product>("mfma_f32_16x16x16f16", a, b, d); }
inline Float4 multiply_add_bf16(Short4 a, Short4 b, Float4 d) { return multiply_add<Bf16Product>("mfma_f32_16x16x16bf16_1k", a, b, d); }

inline void barrier() { emulation::wait_for_workgroup(); }

struct WaveBarrier {
  static void resolve(WaveBarrier* (&)[kLanes]) { emulation::order_shared_accesses(); }
};
inline void wave_barrier() {
  WaveBarrier own;
  collective("wave_barrier", own);
}

// Workgroups run one after another, and lanes in one thread: memory is in order.
inline void release_to_device() {}
inline void acquire_from_device() {}
inline int add_on_device(int* counter, int value) {
  const int before = *counter;
  *counter += value;
  return before;
}

inline Float4 as_accumulator(Float4 x) { return x; }
inline std::uint32_t unknown(std::uint32_t word) { return word; }
template <class Params>
const Params& reloaded(const Params& params) {
  return params;
}

inline float exp2(float x) { return std::exp2f(x); }
inline float reciprocal(float x) { return 1.0f / x; }

inline std::uint32_t low_halves(std::uint32_t first, std::uint32_t second) { return (first & 0xffffu) | second << 16; }
inline std::uint32_t high_halves(std::uint32_t first, std::uint32_t second) { return first >> 16 | (second & 0xffff0000u); }

template <int kBits>
std::uint32_t shift_halves_right(std::uint32_t halves) {
  const auto shifted = [](std::uint32_t half) { return static_cast<std::uint16_t>(static_cast<std::int16_t>(half) >> kBits); };
  return shifted(halves & 0xffffu) | static_cast<std::uint32_t>(shifted(halves >> 16)) << 16;
}
inline Float2 multiply_pair(float first, float second, float factor) { return Float2{first, second} * factor; }
inline std::uint32_t multiply_halves(std::uint32_t halves, float factor) {
  const auto product = [&](std::uint32_t half) {
    return detail::f16_from_f32(detail::f32_from_f16(static_cast<std::uint16_t>(half)) * factor);
  };
  return product(halves & 0xffffu) | static_cast<std::uint32_t>(product(halves >> 16)) << 16;
}

template <int kBytes>
class SharedMemory {
 public:
  template <class T>
  T load(int offset) const {
    T value;
    std::memcpy(&value, emulation::shared_access(kBytes, offset, sizeof(T), alignof(T), false), sizeof(T));
    return value;
  }
  template <class T>
  void store(int offset, const T& value) const {
    std::memcpy(emulation::shared_access(kBytes, offset, sizeof(T), alignof(T), true), &value, sizeof(T));
  }
};

}  // namespace fovea::gpu::cdna

/// A function that the registry finds by its name.
#define FOVEA_CDNA_KERNEL(name, Params, threads, waves)                                       \
  static void name(const Params params);                                                      \
  static const fovea::gpu::emulation::Registration name##_registration(                       \
      #name, [](const void* params) { name(*static_cast<const Params*>(params)); }, threads); \
  static void name(const Params params)
