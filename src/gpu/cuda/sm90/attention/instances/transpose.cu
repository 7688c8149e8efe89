// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda/sm90/attention/launch.hpp"
#include "gpu/cuda/sm90/attention/transpose.cuh"

namespace fovea::gpu::sm90::attention {

Result<void> launch_transpose(const Params& params, int key_tile, int columns, int tiles, Stream stream) {
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(tiles)), .block = dim3(static_cast<unsigned>(key_tile / 16 * columns / 4)), .programmatic = true};
  return launch(&transpose_values, shape, stream, params, key_tile, columns);
}

}  // namespace fovea::gpu::sm90::attention
