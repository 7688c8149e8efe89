// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda/common/target.cuh"
#include "gpu/cuda/common/value_tiles.hpp"
#include "gpu/cuda/sm90/dense/value_tiles.cuh"

namespace fovea::gpu::sm90::dense {

/// The keys that one CTA transposes: those of a sequence from `first` on.
struct ValuePlace {
  int sequence, k_begin, first, seq_k;
};

/// Finds the place of tile `index` of a head, by bisection in a ragged batch.
static __device__ ValuePlace place_of(const ValueTiles& tiles, int index) {
  if (tiles.cu_seqlens_k == nullptr) {
    const int of_sequence = static_cast<int>(tiles.first(1, 0)), sequence = index / of_sequence;
    return {sequence, 0, index % of_sequence * tiles.key_tile, tiles.seq_k};
  }
  int sequence = 0;
  for (int end = tiles.batch; end - sequence > 1;) {
    const int middle = (sequence + end) / 2;
    (tiles.first(middle, tiles.cu_seqlens_k[middle]) <= index ? sequence : end) = middle;
  }
  const int k_begin = tiles.cu_seqlens_k[sequence], length = tiles.cu_seqlens_k[sequence + 1] - k_begin;
  const auto first = (index - tiles.first(sequence, k_begin)) * tiles.key_tile;
  return {sequence, k_begin, static_cast<int>(first), min(max(length, 0), tiles.seq_k)};
}

/// A thread has 16 keys and four columns of a tile and kv head.
__global__ void transpose_values(const __grid_constant__ ValueTiles tiles) {
  grid_dependency_wait();
  launch_dependents();
  const int kv_head = static_cast<int>(blockIdx.x) % tiles.kv_heads;
  const ValuePlace tile = place_of(tiles, static_cast<int>(blockIdx.x) / tiles.kv_heads);
  // A ragged batch has tiles that belong to no sequence.
  if (tile.first < 0 || (tile.first > 0 && tile.first >= tile.seq_k)) return;
  const int quads = tiles.columns / 4, column = static_cast<int>(threadIdx.x) % quads * 4, group = static_cast<int>(threadIdx.x) / quads;
  const detail::RowStrides& strides = tiles.strides;
  const auto* v = static_cast<const std::byte*>(tiles.v) + tile.sequence * strides.batch + kv_head * strides.head + column;
  std::uint32_t rows[16];  // four columns of each key
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int key = tile.first + group * 16 + i;
    rows[i] = 0;
    if (key < tile.seq_k && column < tiles.head_dim)
      rows[i] = *reinterpret_cast<const std::uint32_t*>(v + (std::int64_t{tile.k_begin} + key) * strides.row);
  }
  std::uint32_t transposed[4][4];  // [column][four keys]
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    const auto row = [&](int i) { return rows[value_key(4 * t + i)]; };
    std::uint32_t columns[4];
    transpose_bytes(columns, {row(0), row(1), row(2), row(3)});
#pragma unroll
    for (int i = 0; i < 4; ++i) transposed[i][t] = columns[i];
  }
  // Units pass through shared memory, so that neighbouring threads store neighbouring units. A unit is
  // 16 keys of a column. A gap after every eight units avoids bank conflicts.
  extern __shared__ uint4 units[];
  const auto at = [](int unit) { return unit + unit / 8; };
  const int unit = group * tiles.columns + column;
#pragma unroll
  for (int i = 0; i < 4; ++i) units[at(unit + i)] = {transposed[i][0], transposed[i][1], transposed[i][2], transposed[i][3]};
  __syncthreads();
  auto* to = reinterpret_cast<uint4*>(tiles.data + std::int64_t{blockIdx.x} * tiles.key_tile * tiles.columns);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int stored = i * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
    to[stored] = units[at(stored)];
  }
}

CudaStatus launch_transpose(ValueTiles tiles, const void* v, const std::int32_t* cu_seqlens_k, void* to, Stream stream) {
  tiles.v = v;
  tiles.cu_seqlens_k = cu_seqlens_k;
  tiles.data = static_cast<std::byte*>(to);
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(tiles.count)),
                          .block = dim3(static_cast<unsigned>(tiles.key_tile / 16 * tiles.columns / 4)),
                          .shared_bytes = static_cast<std::size_t>(tiles.key_tile * tiles.columns) * 9 / 8,
                          .programmatic = true};
  return launch(&transpose_values, shape, stream, tiles);
}

}  // namespace fovea::gpu::sm90::dense
