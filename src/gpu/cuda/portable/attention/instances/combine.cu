// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda/portable/attention/launch.hpp"

namespace fovea::gpu::portable::attention {

Result<void> launch_combine(const Splits& splits, DType dtype, Stream stream) {
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>((splits.cells() + kCombineWarps - 1) / kCombineWarps)),
                          .block = dim3(32 * kCombineWarps)};
  return launch(dtype == DType::f16 ? &combine_splits<__half> : &combine_splits<__nv_bfloat16>, shape, stream, splits);
}

}  // namespace fovea::gpu::portable::attention
