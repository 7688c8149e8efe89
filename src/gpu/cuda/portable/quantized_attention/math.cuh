// SPDX-License-Identifier: Apache-2.0
/// The MMAs and the softmax of a warp. Scores are integers; a block has 16 query rows; accumulators stay in registers.
#pragma once

#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/common/mma.cuh"
#include "gpu/cuda/common/quantized/softmax.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/portable/quantized_attention/epilogue.cuh"
#include "gpu/cuda/portable/quantized_attention/load.cuh"

namespace fovea::gpu::portable::quantized_attention {

template <class Config>
class Math {
 public:
  __device__ Math(const Params& params_, Storage<Config>& storage_)
      : params(params_),
        storage(storage_),
        lane(static_cast<int>(threadIdx.x) % 32),
        warp_row(static_cast<int>(threadIdx.x) / 32 * Config::kWarpRows) {}

  /// Computes key tiles from the last to the first. Loads of the queries and of the last tile's keys have been issued.
  __device__ __forceinline__ void operator()(const Loader<Config>& load) {
    begin();
    const int first = storage.work.first;
    int stage = 0;
    float next_scale = storage.work.last > first ? key_scale_of(storage.work.last - 1) : 0;
    for (int tile = storage.work.last - 1; tile >= first; --tile) {
      copy_async_wait<0>();
      __syncthreads();  // this tile's keys have arrived, and the tile before has been read
      if (Config::kStages == 1) {
        load.values(tile, 0);
      } else if (tile > first) {
        load.keys(tile - 1, 1 - stage);
        load.values(tile - 1, 1 - stage);
      }
      copy_async_commit();
      const bool seen = sees(tile);
      const float key_scale = next_scale;
      if (tile > first) next_scale = key_scale_of(tile - 1);
      if (seen) compute_scores(stage);
      if (Config::kStages == 1) {
        copy_async_wait<0>();
        __syncthreads();  // this tile's values have arrived, and its keys have been read
        if (tile > first) load.keys(tile - 1, 0);
        copy_async_commit();
      }
      if (seen) {
        take_scores(tile, key_scale);
        add_values(stage);
      }
      if (Config::kStages == 2) stage = 1 - stage;
    }
    copy_async_wait<0>();
    Epilogue<Config>(params, storage)(softmax, out, query_scale);
  }

 private:
  using CodeRows = SwizzledRows<Config::kCodeColumns>;
  using ValueRows = SwizzledRows<Config::kValueColumns>;
  using ValueOperands = Values<typename Config::ValueElement>;
  static constexpr int kBlocks = Config::kBlocks, kScores = Config::kKeyTile / 2;  // accumulators of a lane for a block
  static constexpr int kOut = Config::kHeadDim / 2;
  static constexpr int kSteps = Config::kKeyTile / ValueOperands::kKeys;  // MMAs over the keys of a tile

  __device__ Scales scales() const { return {params, storage.work}; }
  /// Scale of the lane's keys of a tile.
  __device__ __forceinline__ float key_scale_of(int tile) const {
    return key_scales[tile * Config::kKeyTile / static_cast<int>(Int8Groups::kKBlock) * scales().key_block_stride()];
  }

  __device__ __forceinline__ void begin() {
    const WorkTile& work = storage.work;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      softmax[b].begin();
#pragma unroll
      for (int i = 0; i < kOut; ++i) out[b][i] = 0;
      query_scale[b] = scales().of_query(min(work.token + warp_row + 16 * b + lane_row(lane), work.seq_q - 1));
    }
    key_scales = scales().at_key(lane_column(lane));
    const MatrixPlace place = a_operand_place(lane);
    queries = shared_address(storage.q) + static_cast<std::uint32_t>(CodeRows::offset(warp_row + place.row, place.chunk));
  }

  /// Whether a row of this warp sees a key of the tile.
  __device__ __forceinline__ bool sees(int tile) const {
    const WorkTile& work = storage.work;
    const int token = work.token + warp_row, key = tile * Config::kKeyTile;
    return token < work.seq_q && key <= token + Config::kWarpRows - 1 + work.high && key + Config::kKeyTile > token + work.low;
  }

  // ---- MMAs ---------------------------------------------------------------------------------------------------------------------

  /// sums (rows x key tile) = Q (rows x head dim) K^T, of codes
  __device__ __forceinline__ void compute_scores(int stage) {
    const MatrixPlace place = b_operand_place(lane);
    const std::uint32_t keys = shared_address(storage.k[stage]) + static_cast<std::uint32_t>(CodeRows::offset(place.row, place.chunk));
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) sums[b][i] = 0;
    }
#pragma unroll
    for (int step = 0; step < Config::kHeadDim / 32; ++step) {
      std::uint32_t q[kBlocks][4];
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) ldmatrix(q[b], CodeRows::advanced(queries, 16 * step) + b * 16 * CodeRows::kRowBytes);
#pragma unroll
      for (int n = 0; n < Config::kKeyTile / 16; ++n) {
        std::uint32_t k[4];
        ldmatrix(k, CodeRows::advanced(keys, 16 * step) + n * 16 * CodeRows::kRowBytes);
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          mma(&sums[b][8 * n], q[b], k[0], k[1]);
          mma(&sums[b][8 * n + 4], q[b], k[2], k[3]);
        }
      }
    }
  }

  /// out (rows x head dim) += P (rows x key tile) V
  __device__ __forceinline__ void add_values(int stage) {
    constexpr int kLoads = Config::kHeadDim / (8 * ValueOperands::kTiles), kOfLoad = 4 * ValueOperands::kTiles;
    if constexpr (ValueOperands::kTileSums) {
#pragma unroll
      for (int n = 0; n < kLoads; ++n) {
        float tile_sums[kBlocks][kOfLoad] = {};
#pragma unroll
        for (int step = 0; step < kSteps; ++step) accumulate(stage, step, n, [&](int b) { return tile_sums[b]; });
#pragma unroll
        for (int i = 0; i < kBlocks * kOfLoad; ++i) out[i / kOfLoad][kOfLoad * n + i % kOfLoad] += tile_sums[i / kOfLoad][i % kOfLoad];
      }
    } else {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int n = 0; n < kLoads; ++n) accumulate(stage, step, n, [&](int b) { return &out[b][kOfLoad * n]; });
      }
    }
  }
  /// MMAs with the n-th load of values. `sums_of(block)`: their accumulators.
  template <class SumsOf>
  __device__ __forceinline__ void accumulate(int stage, int step, int n, const SumsOf& sums_of) {
    const MatrixPlace place = ValueOperands::place(lane);
    const std::uint32_t values = shared_address(storage.v[stage]) + static_cast<std::uint32_t>(ValueRows::offset(place.row, place.chunk));
    const int first_row = step * ValueOperands::kKeys;
    std::uint32_t loaded[4], v[ValueOperands::kTiles][2];
    ldmatrix_trans(loaded, ValueRows::advanced(values, ValueOperands::kLoadedColumns * n) + first_row * ValueRows::kRowBytes);
    ValueOperands::operands(loaded, v);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int j = 0; j < ValueOperands::kTiles; ++j) {
        mma<typename ValueOperands::Operand>(sums_of(b) + 4 * j, weights[b][step], v[j][0], v[j][1]);
      }
    }
  }

  // ---- softmax ------------------------------------------------------------------------------------------------------------------

  /// Turns sums into weights, and makes `out` relative to the same maximum. One block at a time takes fewer registers.
  __device__ __forceinline__ void take_scores(int tile, float key_scale) {
    const bool edge = tile < storage.work.full_first || tile >= storage.work.full_last;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const CodeScale scale = scales().scale(query_scale[b], key_scale);
      float scores[kScores];
#pragma unroll
      for (int i = 0; i < kScores; ++i) scores[i] = static_cast<float>(sums[b][i]);
      const float unit[1] = {scale.unit};
      Exponents<1> exponents;
      if (!softmax[b].takes_sums(sums[b], unit, scale.log2, exponents) || edge) {
#pragma unroll
        for (int i = 0; i < kScores; ++i) scores[i] *= scale.unit;
        if (edge) mask(scores, warp_row + 16 * b + lane_row(lane), tile * Config::kKeyTile);
        softmax[b].take_scores(scores, scale.log2, exponents);
#pragma unroll
        for (int i = 0; i < kOut; ++i) out[b][i] *= softmax[b].rescale[row_of(i)];
      }
      softmax[b].exponentiate(scores, exponents.factor, exponents.offset, params.zero);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) ValueOperands::probabilities(scores + step * kScores / kSteps, weights[b][step]);
    }
  }

  /// `first_row`: of the query tile, the lane's first row of the block.
  __device__ __forceinline__ void mask(float (&block)[kScores], int first_row, int key) const {
    const WorkTile& work = storage.work;
    const int column = key + lane_column(lane);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int token = work.token + first_row + 8 * r;
      const int begin = max(token + work.low, 0) - column, end = min(token + work.high + 1, work.seq_k) - column;
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        if (row_of(i) == r && (column_of(i) < begin || column_of(i) >= end)) block[i] = -INFINITY;
      }
    }
  }

  const Params& params;
  Storage<Config>& storage;
  const int lane, warp_row;    // of the query tile, the warp's first row
  std::uint32_t queries;       // the lane's ldmatrix address in the warp's rows
  const float* key_scales;     // of the lane's first keys
  float query_scale[kBlocks];  // of both rows of the lane
  int sums[kBlocks][kScores];
  std::uint32_t weights[kBlocks][kSteps][4];
  float out[kBlocks][kOut];
  typename Epilogue<Config>::Softmax softmax[kBlocks];
};

}  // namespace fovea::gpu::portable::quantized_attention
