// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "gpu/cuda/portable/paged_attention/combine.cuh"

namespace fovea::gpu::portable::paged_attention {
namespace {

template <int kRowTile>
Result<void> launch_combine(const Params& params, bool programmatic, Stream stream) {
  const std::int64_t of_sequence = std::int64_t{params.seq_q} * params.group.divisor;
  const auto rows = static_cast<unsigned>(std::min<std::int64_t>(of_sequence, kRowTile));
  const auto kv_heads = static_cast<unsigned>(params.kv_heads);
  LaunchShape shape{.block = dim3(kThreads), .programmatic = programmatic};
  const int parts = std::min(params.parts / params.batch, params.seq_k / kLeastKeys);  // of a sequence
  if (of_sequence <= kRowTile && params.batch <= 32 && parts >= kManyParts) {
    shape.grid = dim3(static_cast<unsigned>(params.batch) * kv_heads, rows);
    return launch(&combine_many_parts<kRowTile>, shape, stream, params);
  }
  shape.grid = dim3(static_cast<unsigned>(params.parts - 1) * kv_heads, (rows + kWarps - 1) / kWarps);
  return launch(&combine_parts<kRowTile>, shape, stream, params);
}

}  // namespace

Result<void> launch_combine(const Params& params, int row_tile, bool programmatic, Stream stream) {
  if (row_tile == kNarrowRows) return launch_combine<kNarrowRows>(params, programmatic, stream);
  if (row_tile == kMiddleRows) return launch_combine<kMiddleRows>(params, programmatic, stream);
  return launch_combine<kWideRows>(params, programmatic, stream);
}

}  // namespace fovea::gpu::portable::paged_attention
