// SPDX-License-Identifier: Apache-2.0
/// Transposition of e4m3 values in shared memory, between their loads and their MMAs: rows of V become a
/// value tile (gpu/cuda/common/value_tiles.hpp).
#pragma once

#include "gpu/cuda/common/mma.cuh"
#include "gpu/cuda/sm90/dense/storage.cuh"
#include "gpu/cuda/sm90/thread.cuh"

namespace fovea::gpu::sm90::dense {

/// Transposes key tiles from `raw` to `v`. Each of kTransposingWarps warps has its groups of 16 keys.
template <class Config>
class ValueTransposer {
 public:
  __device__ ValueTransposer(Storage<Config>& storage_, int warp_) : storage(storage_), warp(warp_) {
    // ldmatrix: eight keys, and the eight keys after them, in a chunk of 16 columns; then the chunk after it.
    const int lane = lane_index(), matrix = lane / 8, row = lane % 8;
    from_lane = (matrix % 2 * 8 + row) * kSliceBytes + ((matrix / 2 ^ row) * 16);
    // stmatrix: units of the even columns of a chunk, and of its odd columns; then those of the next chunk.
    to_lane = (matrix / 2 * 16 + 2 * row + matrix % 2) * kValueUnit;
  }

  __device__ void operator()() {
    PipelineState<kWorkTiles> at;
    for (;; at.advance()) {
      barrier_wait(shared_address(&storage.work_full[at.stage]), at.parity);
      const WorkTile& work = storage.work_tiles[at.stage];
      if (uniform(work.done) != 0) return;
      for (int tiles = uniform(work.last - work.first); tiles > 0; --tiles) transpose_tile();
    }
  }

 private:
  static constexpr int kUnits = Config::kKeyTile / kValueUnit, kUnitBytes = Config::kHeadDimV * kValueUnit;
  static constexpr int kPiece = 32;  // columns of a load

  __device__ void transpose_tile() {
    barrier_wait(shared_address(&storage.raw.full[raws.stage]), raws.parity);
    barrier_wait(shared_address(&storage.v_empty[values.stage]), values.parity ^ 1);
    const std::uint32_t from = shared_address(storage.raw.tiles[raws.stage]), to = shared_address(storage.v[values.stage]) + to_lane;
#pragma unroll 1
    for (int unit = warp; unit < kUnits; unit += kTransposingWarps) {
#pragma unroll
      for (int column = 0; column < Config::kHeadDimV; column += kPiece)
        transpose(from + unit * kValueUnit * kSliceBytes + column / kSliceBytes * Config::kKeySliceBytes, column % kSliceBytes,
                  to + unit * kUnitBytes + column * kValueUnit);
    }
    fence_shared_for_async();
    __syncwarp();
    if (lane_index() == 0) {
      barrier_arrive(shared_address(&storage.v_full[values.stage]));
      barrier_arrive(shared_address(&storage.raw.empty[raws.stage]));
    }
    raws.advance();
    values.advance();
  }

  /// Transposes 16 keys of kPiece columns. A register has two keys of a pair of columns, at first.
  __device__ void transpose(std::uint32_t keys, int column, std::uint32_t units) const {
    std::uint32_t x[4];
    ldmatrix_trans(x, keys + (from_lane ^ static_cast<std::uint32_t>(column)));
    store_matrices(units, __byte_perm(x[0], x[1], 0x6420), __byte_perm(x[0], x[1], 0x7531), __byte_perm(x[2], x[3], 0x6420),
                   __byte_perm(x[2], x[3], 0x7531));
  }

  Storage<Config>& storage;
  const int warp;
  std::uint32_t from_lane, to_lane;
  PipelineState<Config::kRawStages> raws;
  PipelineState<Config::kValueStages> values;
};

}  // namespace fovea::gpu::sm90::dense
