// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fovea::check {

struct Output {
  int* out = nullptr;  // (thread)
};

/// Operands of one MMA as lanes hold them, and its result.
struct LaneProduct {
  const short *a = nullptr, *b = nullptr;  // (lane, 4)
  float* d = nullptr;                      // (lane, 4)
  bool bf16 = false;
};

}  // namespace fovea::check
