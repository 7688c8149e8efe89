// SPDX-License-Identifier: Apache-2.0
/// Compiled, not run: nvcc must accept the public headers and the arithmetic that kernels of every device share.
#include "fovea/fovea.hpp"
#include "gpu/tensor_map.hpp"
#include "op/common/band.hpp"
#include "op/common/numeric.hpp"

namespace {

__global__ void tiles_of(fovea::detail::Band band, std::int64_t seq_k, fovea::detail::KvTiles* tiles) {
  const std::int64_t q_begin = 64 * static_cast<std::int64_t>(blockIdx.x);
  tiles[blockIdx.x] = fovea::detail::kv_tiles(band, q_begin, q_begin + 64, seq_k, 128);
}

__global__ void quantize(const float* values, std::uint8_t* codes) {
  codes[threadIdx.x] = fovea::detail::e4m3_from_f32(values[threadIdx.x]);
}

}  // namespace

void launch(fovea::detail::KvTiles* tiles, const float* values, std::uint8_t* codes) {
  tiles_of<<<1, 1>>>(fovea::detail::make_band(fovea::causal(), 64, 64), 64, tiles);
  quantize<<<1, 32>>>(values, codes);
}
