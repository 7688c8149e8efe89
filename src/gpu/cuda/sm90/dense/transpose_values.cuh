// SPDX-License-Identifier: Apache-2.0
/// Transposition of e4m3 values in shared memory, between their loads and their MMAs: rows of V become a
/// value tile (gpu/cuda/common/value_tiles.hpp).
#pragma once

#include "gpu/cuda/common/mma.cuh"
#include "gpu/cuda/sm90/dense/storage.cuh"
#include "gpu/cuda/sm90/thread.cuh"

namespace fovea::gpu::sm90::dense {

/// Column of the MMA that has a column, of 32. Eight accumulators of a lane are then neighbours in a row,
/// which it stores without an exchange.
constexpr int place_of_column(int column) { return column % 8 / 2 * 8 + column / 8 * 2 + column % 2; }

/// Transposes key tiles from the slices of `raw` to `v`. Each of kTransposingWarps warps has its groups of 16 keys.
template <class Config>
class ValueTransposer {
 public:
  __device__ ValueTransposer(Storage<Config>& storage_, int warp_) : storage(storage_), warp(warp_) {
    // ldmatrix: eight keys, and the eight keys after them, in a chunk of 16 columns; then the chunk after it.
    const int lane = lane_index(), matrix = lane / 8, row = lane % 8;
    from_lane = (matrix % 2 * 8 + row) * kSliceBytes + ((matrix / 2 ^ row) * 16);
    // stmatrix: units of columns 2 * row + odd of a chunk, where `odd` alternates by pairs of rows, for
    // banks; then those of the other columns; then those of the next chunk.
    const int odd = (matrix ^ row / 2) % 2;
    to_lane = place_of_column(matrix / 2 * 16 + 2 * row + odd) * kValueUnit;
    selector[0] = lane / 8 % 2 == 0 ? 0x6420 : 0x7531;
    selector[1] = lane / 8 % 2 == 0 ? 0x7531 : 0x6420;
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
  static constexpr int kPiece = 32;                                      // columns of a load
  static constexpr int kInFlight = Config::kLoadRegisters < 40 ? 2 : 4;  // loads

  __device__ void transpose_tile() {
    barrier_wait(shared_address(&storage.v_empty[values.stage]), values.parity ^ 1);
    const std::uint32_t to = shared_address(storage.v[values.stage]) + to_lane;
#pragma unroll
    for (int column = 0; column < Config::kHeadDimV; column += kSliceBytes) transpose_slice(column, to + column * kValueUnit);
    fence_shared_for_async();
    __syncwarp();
    if (lane_index() == 0) barrier_arrive(shared_address(&storage.v_full[values.stage]));
    values.advance();
  }

  /// Transposes the slice with columns from `column` on.
  __device__ __forceinline__ void transpose_slice(int column, std::uint32_t to) {
    barrier_wait(shared_address(&storage.raw.full[raws.stage]), raws.parity);
    const std::uint32_t from = shared_address(storage.raw.slices[raws.stage]);
    const int pieces = min(kSliceBytes, Config::kHeadDimV - column) / kPiece;
#pragma unroll 1
    for (int unit = warp; unit < kUnits; unit += kTransposingWarps) {
#pragma unroll
      for (int piece = 0; piece < pieces; piece += kInFlight)
        transpose(from + unit * kValueUnit * kSliceBytes, to + unit * kUnitBytes, piece, min(piece + kInFlight, pieces));
    }
    __syncwarp();
    if (lane_index() == 0) barrier_arrive(shared_address(&storage.raw.empty[raws.stage]));
    raws.advance();
  }

  /// Transposes pieces [first, end) of 16 keys. A register has two keys of a pair of columns, at first.
  __device__ __forceinline__ void transpose(std::uint32_t keys, std::uint32_t units, int first, int end) const {
    std::uint32_t loaded[kInFlight][4];
#pragma unroll
    for (int i = first; i < end; ++i) ldmatrix_trans(loaded[i - first], keys + (from_lane ^ static_cast<std::uint32_t>(i * kPiece)));
#pragma unroll
    for (int i = first; i < end; ++i) {
      const std::uint32_t(&x)[4] = loaded[i - first];
      const auto bytes = [&](int pair, int which) { return __byte_perm(x[2 * pair], x[2 * pair + 1], selector[which]); };
      store_matrices(units + i * kPiece * kValueUnit, bytes(0, 0), bytes(0, 1), bytes(1, 0), bytes(1, 1));
    }
  }

  Storage<Config>& storage;
  const int warp;
  std::uint32_t from_lane, to_lane;
  std::uint32_t selector[2];  // of the bytes of a chunk's first and second matrix
  PipelineState<Config::kRawStages> raws;
  PipelineState<Config::kValueStages> values;
};

}  // namespace fovea::gpu::sm90::dense
