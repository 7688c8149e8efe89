// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "gpu/cuda/portable/paged_attention/combine.cuh"

namespace fovea::gpu::portable::paged_attention {

Result<void> launch_combine(const Params& params, int row_tile, bool programmatic, Stream stream) {
  const int rows = static_cast<int>(std::min(std::int64_t{params.seq_q} * params.group.divisor, std::int64_t{row_tile}));
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>((params.parts - 1) * params.kv_heads), static_cast<unsigned>((rows + kWarps - 1) / kWarps)),
      .block = dim3(kThreads),
      .programmatic = programmatic};
  const auto kernel = row_tile == kNarrowRows   ? &combine_parts<kNarrowRows>
                      : row_tile == kMiddleRows ? &combine_parts<kMiddleRows>
                                                : &combine_parts<kWideRows>;
  return launch(kernel, shape, stream, params);
}

}  // namespace fovea::gpu::portable::paged_attention
