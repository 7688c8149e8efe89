// SPDX-License-Identifier: Apache-2.0
/// Converts rows of any length between f32 and their storage.
#pragma once

#include "cpu/attention/softmax.hpp"
#include "cpu/attention/stream.hpp"

namespace fovea::cpu::FOVEA_ISA {

template <class S>
FOVEA_INLINE Vec load_some(const typename S::Code* p, std::int64_t count) {
  if (count >= kLanes) return load(S{}, p);
  typename S::Code some[kLanes] = {};
  __builtin_memcpy(some, p, static_cast<unsigned long>(count) * sizeof(typename S::Code));
  return load(S{}, some);
}

template <class S>
FOVEA_INLINE void store_some(typename S::Code* p, Vec a, std::int64_t count) {
  if (count >= kLanes) return store(S{}, p, a);
  typename S::Code some[kLanes];
  store(S{}, some, a);
  __builtin_memcpy(p, some, static_cast<unsigned long>(count) * sizeof(typename S::Code));
}

template <class S>
static void add_scaled(float* acc, Row source, float factor, std::int64_t count) {
  const auto* from = static_cast<const typename S::Code*>(source);
  const Vec by = splat(factor);
  for (std::int64_t i = 0; i < count; i += kLanes) {
    store_some<F32>(acc + i, fma(load_some<S>(from + i, count - i), by, load_some<F32>(acc + i, count - i)), count - i);
  }
}

/// f32 divides instead of multiplying by the inverse. If a row sees one key, the sum then cancels exactly.
template <class S>
static void store_divided(void* target, const float* source, float divisor, float factor, std::int64_t count) {
  auto* to = static_cast<typename S::Code*>(target);
  constexpr bool kDivide = S::kIndex == F32::kIndex;
  const Vec over = splat(divisor), by = splat(kDivide ? factor : factor / divisor);
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const Vec value = load_some<F32>(source + i, count - i);
    store_some<S>(to + i, mul(kDivide ? div(value, over) : value, by), count - i);
  }
}

template <class S>
static void quantize(void* target, Row source, float scale, std::int64_t count) {
  auto* to = static_cast<E4M3::Code*>(target);
  const auto* from = static_cast<const typename S::Code*>(source);
  const Vec over = splat(scale);
  for (std::int64_t i = 0; i < count; i += kLanes) store_some<E4M3>(to + i, div(load_some<S>(from + i, count - i), over), count - i);
}

inline constexpr RowKernels kRowKernels{
    .add_scaled = {add_scaled<F32>, add_scaled<F16>, add_scaled<BF16>, add_scaled<E4M3>},
    .store_divided = {store_divided<F32>, store_divided<F16>, store_divided<BF16>, nullptr},
    .quantize = {quantize<F32>, quantize<F16>, quantize<BF16>, nullptr},
    .stream_values = {stream_values<F32>, stream_values<F16>, stream_values<BF16>, stream_values<E4M3>},
    .softmax = softmax<F32Math>,
};

}  // namespace fovea::cpu::FOVEA_ISA
