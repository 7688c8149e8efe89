// SPDX-License-Identifier: Apache-2.0
/// exp2 and tanh on vectors. The error bounds are measured over dense sweeps in tests/unit/cpu_math.cpp.
#pragma once

#include "cpu/isa/storage.hpp"

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

/// Within 3 ulp. Saturates, so no |x| overflows. NaN stays NaN.
FOVEA_INLINE Vec tanh(Vec x) {
  const Vec size = abs(x), square = mul(x, x);
  // Below 0.625: an odd polynomial (Cephes tanhf), since 1 - 2 / (e^2x + 1) would cancel.
  Vec p = splat(-5.70498872745e-3f);
  p = fma(p, square, splat(2.06390887954e-2f));
  p = fma(p, square, splat(-5.37397155531e-2f));
  p = fma(p, square, splat(1.33314422036e-1f));
  p = fma(p, square, splat(-3.33332819422e-1f));
  const Vec small = fma(mul(p, square), x, x);
  const Vec decay = exp2(mul(size, splat(-2.885390082f)));  // e^(-2 |x|)
  const Vec large = copy_sign(div(sub(splat(1.0f), decay), add(splat(1.0f), decay)), x);
  return select_less(size, splat(0.625f), small, large);
}

}  // namespace fovea::cpu::FOVEA_ISA
