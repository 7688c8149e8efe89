// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda/sm90/attention/combine.cuh"
#include "gpu/cuda/sm90/attention/launch.hpp"

namespace fovea::gpu::sm90::attention {

Result<void> launch_combine(const Params& params, DType dtype, Stream stream) {
  const std::int64_t cells = params.rows * params.heads;
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>((cells + kCombineWarps - 1) / kCombineWarps)),
                          .block = dim3(32 * kCombineWarps),
                          .programmatic = true};
  if (dtype == DType::f32) return launch(&combine<float>, shape, stream, params);
  return launch(dtype == DType::f16 ? &combine<__half> : &combine<__nv_bfloat16>, shape, stream, params);
}

}  // namespace fovea::gpu::sm90::attention
