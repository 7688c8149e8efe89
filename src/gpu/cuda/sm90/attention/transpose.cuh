// SPDX-License-Identifier: Apache-2.0
/// e4m3 products contract contiguous elements of both operands, so V is transposed by a kernel of its own, into key tiles as they lie in
/// shared memory: [tile][kv_head][16 keys][column][key], zeros past the sequence's end and the head dim.
///
/// Keys of a 16 are in the order of a lane's accumulators: four neighbours are keys 2t, 2t + 1, 2t + 8, 2t + 9. So the probabilities that a
/// lane has of these are its registers of the first operand.
#pragma once

#include "gpu/cuda/common/programmatic_launch.cuh"
#include "gpu/cuda/sm90/attention/params.hpp"

namespace fovea::gpu::sm90::attention {

/// Keys of a sequence that one block transposes.
struct ValueTile {
  int sequence, k_begin, first, seq_k;
};

/// Tile `index` of value_tiles; of a ragged batch, by bisection.
__device__ inline ValueTile value_tile_at(const Params& params, int index, int key_tile) {
  if (params.cu_seqlens_k == nullptr) {
    const int tiles = static_cast<int>(params.first_value_tile(1, 0, key_tile)), sequence = index / tiles;
    return {sequence, 0, index % tiles * key_tile, params.seq_k};
  }
  int sequence = 0;
  for (int end = params.batch; end - sequence > 1;) {
    const int middle = (sequence + end) / 2;
    (params.first_value_tile(middle, params.cu_seqlens_k[middle], key_tile) <= index ? sequence : end) = middle;
  }
  const int k_begin = params.cu_seqlens_k[sequence], length = params.cu_seqlens_k[sequence + 1] - k_begin;
  const auto first = (index - params.first_value_tile(sequence, k_begin, key_tile)) * key_tile;
  return {sequence, k_begin, static_cast<int>(first), min(max(length, 0), params.seq_k)};
}

/// A thread for each 16 keys and four columns of a tile and kv head.
__global__ void transpose_values(const __grid_constant__ Params params, int key_tile, int columns) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int kv_heads = params.heads / params.heads_per_kv, kv_head = static_cast<int>(blockIdx.x) % kv_heads;
  const ValueTile tile = value_tile_at(params, static_cast<int>(blockIdx.x) / kv_heads, key_tile);
  // Of a ragged batch, some tiles are no sequence's.
  if (tile.first < 0 || (tile.first > 0 && tile.first >= tile.seq_k)) return;
  const int quads = columns / 4, column = static_cast<int>(threadIdx.x) % quads * 4, group = static_cast<int>(threadIdx.x) / quads;
  const detail::RowStrides& strides = params.v.strides;
  const auto* v = static_cast<const std::byte*>(params.v.data) + tile.sequence * strides.batch + kv_head * strides.head + column;
  std::uint32_t rows[16];  // four columns of each key
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int key = tile.first + group * 16 + i;
    rows[i] = 0;
    if (key < tile.seq_k && column < params.head_dim_v)
      rows[i] = *reinterpret_cast<const std::uint32_t*>(v + (std::int64_t{tile.k_begin} + key) * strides.row);
  }
  std::uint32_t transposed[4][4];  // of each column, keys in fours
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    const std::uint32_t a = rows[2 * t], b = rows[2 * t + 1], c = rows[2 * t + 8], d = rows[2 * t + 9];
    const std::uint32_t ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140);
    const std::uint32_t ab_high = __byte_perm(a, b, 0x7362), cd_high = __byte_perm(c, d, 0x7362);
    transposed[0][t] = __byte_perm(ab, cd, 0x5410);
    transposed[1][t] = __byte_perm(ab, cd, 0x7632);
    transposed[2][t] = __byte_perm(ab_high, cd_high, 0x5410);
    transposed[3][t] = __byte_perm(ab_high, cd_high, 0x7632);
  }
  auto* to = reinterpret_cast<uint4*>(params.value_tiles + std::int64_t{blockIdx.x} * key_tile * columns) + group * columns + column;
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = {transposed[i][0], transposed[i][1], transposed[i][2], transposed[i][3]};
}

}  // namespace fovea::gpu::sm90::attention
