// SPDX-License-Identifier: Apache-2.0
/// exp2 and soft caps on vectors. The error bounds are measured over dense sweeps in tests/unit/cpu_math_test.cpp.
#pragma once

#include "cpu/isa/storage.hpp"
#include "cpu/kernels.hpp"

namespace fovea::cpu::FOVEA_ISA {

/// 2^x for x <= 126, within 1.5 ulp down to 2^-126. Below that it falls to exactly 0 before -inf. NaN stays NaN. With kForBf16 the error is
/// within 3e-6, a thousandth of what rounding to bf16 adds.
template <bool kForBf16 = false>
FOVEA_INLINE Vec exp2(Vec x) {
  const Split split = split_exponent(x);
  const Vec f = split.fraction;
  Vec p;  // minimax for the relative error of 2^f, with p(0) = 1
  if constexpr (kForBf16) {
    p = fma(splat(9.58285294e-3f), f, splat(5.59064262e-2f));
    p = fma(p, f, splat(2.40240991e-1f));
    p = fma(p, f, splat(6.93124175e-1f));
  } else {
    p = fma(splat(1.5353362e-4f), f, splat(1.3398875e-3f));
    p = fma(p, f, splat(9.618437e-3f));
    p = fma(p, f, splat(5.5503324e-2f));
    p = fma(p, f, splat(2.4022648e-1f));
    p = fma(p, f, splat(6.931472e-1f));
  }
  p = fma(p, f, splat(1.0f));
  return scale_by_power(p, split.whole);
}

/// A score under a cap, and the hyperbolic tangent behind it.
struct Capped {
  Vec score, tanh;
};

/// Both within 4 ulp. Saturates, so no score overflows. NaN stays NaN.
FOVEA_INLINE Capped capped(Vec product, const SoftCap& by) {
  const Vec score = mul(product, splat(by.scale)), exponent = mul(product, splat(by.into_cap));  // 2^exponent = e^(2 t), t = score / cap
  const Vec size = abs(exponent), t = mul(exponent, splat(0.34657359f)), square = mul(t, t);
  // Below |t| = 0.625: an odd polynomial (Cephes tanhf), since 1 - 2 / (e^2t + 1) would cancel. The score itself is multiplied by it:
  // under a large cap t may be too small for a float.
  Vec p = splat(-5.70498872745e-3f);
  p = fma(p, square, splat(2.06390887954e-2f));
  p = fma(p, square, splat(-5.37397155531e-2f));
  p = fma(p, square, splat(1.33314422036e-1f));
  p = mul(fma(p, square, splat(-3.33332819422e-1f)), square);
  const Vec decay = exp2(sub(zero(), size));  // e^(-2 |t|)
  const Vec large = copy_sign(div(sub(splat(1.0f), decay), add(splat(1.0f), decay)), exponent);
  const Vec small = splat(1.8033688f);  // 0.625 * 2 log2(e)
  return {select_less(size, small, fma(p, score, score), mul(large, splat(by.cap))), select_less(size, small, fma(p, t, t), large)};
}

}  // namespace fovea::cpu::FOVEA_ISA
