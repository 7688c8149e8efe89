// SPDX-License-Identifier: Apache-2.0
/// Parameters of the kernels of the backward pass.
#pragma once

#include "gpu/cuda/common/gradient/params.hpp"

namespace fovea::gpu::portable::attention_backward {

using namespace gradient;

struct Tensor : PlainRows {
  bool aligned = false;  // every row, to 16 bytes
};

struct Params : GradientParams {
  static constexpr bool kOrderedDq = false;  // no two CTAs add to the same gradient
  Tensor q, k, v, out, dout, dq, dk, dv;
};

}  // namespace fovea::gpu::portable::attention_backward
