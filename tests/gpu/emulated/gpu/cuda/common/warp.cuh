// SPDX-License-Identifier: Apache-2.0
/// In place of the header of this name, which needs CUDA's own: what the walk takes of it.
#pragma once

namespace fovea::gpu {

struct Warp {
  template <class Sum>
  static int inclusive_sum(int x, const Sum& sum) {
    int upto = __shfl_sync(~0u, x, 0);
    for (int lane = 1; lane < 32; ++lane) {
      const int next = __shfl_sync(~0u, x, lane);
      if (lane <= static_cast<int>(threadIdx.x % 32)) upto = sum(upto, next);
    }
    return upto;
  }
};

}  // namespace fovea::gpu
