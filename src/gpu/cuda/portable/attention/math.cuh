// SPDX-License-Identifier: Apache-2.0
/// The MMAs and the softmax of a warp. A block has 16 query rows; accumulators stay in registers.
#pragma once

#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/common/mma.cuh"
#include "gpu/cuda/common/score_bias.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/portable/attention/epilogue.cuh"
#include "gpu/cuda/portable/attention/load.cuh"

namespace fovea::gpu::portable::attention {

template <class Config>
class Math {
 public:
  __device__ Math(const Params& params_, Storage<Config>& storage_)
      : params(params_),
        storage(storage_),
        lane(static_cast<int>(threadIdx.x % 32)),
        warp_row(static_cast<int>(threadIdx.x / 32) * Config::kWarpRows) {}

  /// Computes key tiles [first, last) from the last to the first. Loads of the queries and of the last tile's keys have been issued.
  /// The first barrier makes the work tile in shared memory visible.
  __device__ __forceinline__ void operator()(int first, int last) {
    const Loader<Config> load(params, storage, storage.work);
    begin();
    if constexpr (kKeepQueries) keep_queries();
    if constexpr (Config::kLists) __syncthreads();
    int stage = 0;
    KeyTiles<Config> tiles(params, storage.work);
    for (int tile = last - 1; tile >= first; --tile) {
      tiles.advance(tile, first);
      copy_async_wait<0>();
      __syncthreads();  // this tile's keys have arrived, and the tile before has been read
      if (Config::kStages == 1) {
        load.values(tiles.current(tile), 0);
      } else if (tile > first) {
        load.keys(tiles.next(tile - 1), 1 - stage);
        load.values(tiles.next(tile - 1), 1 - stage);
      }
      copy_async_commit();
      const bool seen = sees(tiles.current(tile));
      if (seen) compute_scores(stage);
      if (Config::kStages == 1) {
        copy_async_wait<0>();
        __syncthreads();  // this tile's values have arrived, and its keys have been read
        if (tile > first) load.keys(tiles.next(tile - 1), 0);
        copy_async_commit();
      }
      if (seen) {
        take_scores(tiles.current(tile), tiles.bits());
        add_values(stage);
      }
      if (Config::kStages == 2) stage = 1 - stage;
    }
    copy_async_wait<0>();
    if (first == last) __syncthreads();  // queries alone: the epilogue writes where they arrive
    Epilogue<Config>(params, storage)(softmax, out);
  }

 private:
  using Element = typename Config::Element;
  using QueryRows = SwizzledRows<Config::kHeadDimQk>;
  using ValueRows = SwizzledRows<Config::kHeadDimV>;
  static constexpr int kBlocks = Config::kBlocks, kSteps = Config::kHeadDimQk / 16;
  static constexpr int kScores = Config::kKeyTile / 2, kOut = Config::kHeadDimV / 2;  // accumulators of a lane for a block
  static constexpr bool kKeepQueries = Config::kTuning.queries_in_registers;

  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      softmax[b].begin();
#pragma unroll
      for (int i = 0; i < kOut; ++i) out[b][i] = 0;
    }
    const MatrixPlace place = a_operand_place(lane);
    queries = shared_address(storage.q) + static_cast<std::uint32_t>(QueryRows::offset(warp_row + place.row, place.chunk));
  }

  /// Whether a row of this warp sees a key of the tile.
  __device__ __forceinline__ bool sees(int tile) const {
    const WorkTile& work = storage.work;
    const int token = work.token + (warp_row >> params.packed_shift), key = tile * Config::kKeyTile;
    const int last = work.token + ((warp_row + Config::kWarpRows - 1) >> params.packed_shift);
    return token < work.seq_q && key <= last + work.high && key + Config::kKeyTile > token + work.low;
  }

  // ---- MMAs ---------------------------------------------------------------------------------------------------------------------

  __device__ __forceinline__ void keep_queries() {
    copy_async_wait<0>();
    __syncthreads();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) load_queries(kept[step], step);
  }
  __device__ __forceinline__ void load_queries(std::uint32_t (&to)[kBlocks][4], int step) const {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) ldmatrix(to[b], QueryRows::advanced(queries, 16 * step) + b * 16 * QueryRows::kRowBytes);
  }

  /// scores (rows x key tile) = Q (rows x head dim) K^T
  __device__ __forceinline__ void compute_scores(int stage) {
    const MatrixPlace place = b_operand_place(lane);
    const std::uint32_t keys = shared_address(storage.k[stage]) + static_cast<std::uint32_t>(QueryRows::offset(place.row, place.chunk));
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) scores[b][i] = 0;
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      std::uint32_t q[kBlocks][4];
      if constexpr (!kKeepQueries) load_queries(q, step);
      const auto& rows = kKeepQueries ? kept[kKeepQueries ? step : 0] : q;
#pragma unroll
      for (int n = 0; n < Config::kKeyTile / 16; ++n) {
        std::uint32_t k[4];
        ldmatrix(k, QueryRows::advanced(keys, 16 * step) + n * 16 * QueryRows::kRowBytes);
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          mma<Element>(&scores[b][8 * n], rows[b], k[0], k[1]);
          mma<Element>(&scores[b][8 * n + 4], rows[b], k[2], k[3]);
        }
      }
    }
  }

  /// out (rows x head dim) += P (rows x key tile) V
  __device__ __forceinline__ void add_values(int stage) {
    const MatrixPlace place = a_operand_place(lane);
    const std::uint32_t values = shared_address(storage.v[stage]) + static_cast<std::uint32_t>(ValueRows::offset(place.row, place.chunk));
#pragma unroll
    for (int step = 0; step < Config::kKeyTile / 16; ++step) {
      std::uint32_t p[kBlocks][4];
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (int i = 0; i < 4; ++i) p[b][i] = pack<Element>(scores[b][8 * step + 2 * i], scores[b][8 * step + 2 * i + 1]);
      }
#pragma unroll
      for (int n = 0; n < Config::kHeadDimV / 16; ++n) {
        std::uint32_t v[4];
        ldmatrix_trans(v, ValueRows::advanced(values, 16 * n) + step * 16 * ValueRows::kRowBytes);
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          mma<Element>(&out[b][8 * n], p[b], v[0], v[1]);
          mma<Element>(&out[b][8 * n + 4], p[b], v[2], v[3]);
        }
      }
    }
  }

  // ---- softmax ------------------------------------------------------------------------------------------------------------------

  /// Turns scores into probabilities, and makes `out` relative to the same maximum. One block at a time takes fewer registers.
  __device__ __forceinline__ void take_scores(int tile, const std::int32_t* bits) {
    const bool edge = tile < storage.work.full_first || tile >= storage.work.full_last;
    const ScoreTransform<Warp> transform = score_transform(params);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      if (Config::kBiased && params.bias.adds()) {
        add_terms(scores[b], forgotten(warp_row + 16 * b), tile * Config::kKeyTile);
      } else {
        transform(scores[b]);
      }
      if (edge) mask(scores[b], warp_row + 16 * b + lane_row(lane), tile * Config::kKeyTile);
      if constexpr (Config::kLists) {
        if (bits != nullptr) hide_by_bits(scores[b], warp_row + 16 * b + lane_row(lane), bits);
      }
      if constexpr (Config::kMasked) hide(scores[b], warp_row + 16 * b + lane_row(lane), tile * Config::kKeyTile);
      const bool grown = softmax[b](scores[b], transform.scale_log2, params.zero);
      softmax[b].quick = false;  // keeping it costs more registers than it saves time
      if constexpr (Config::kTakesDropout) {
        if (params.bias.dropout_state != nullptr) {
          drop_weights(scores[b], forgotten(warp_row + 16 * b), tile * Config::kKeyTile);
        }
      }
      if (!grown) continue;
#pragma unroll
      for (int i = 0; i < kOut; ++i) out[b][i] *= softmax[b].rescale[row_of(i)];
    }
  }

  /// A number whose consequences are recomputed for each tile: to keep them takes registers.
  static __device__ __forceinline__ int forgotten(int x) {
    asm volatile("" : "+r"(x));
    return x;
  }

  /// Makes scores of products, with ALiBi and bias. `block_row`: of the query tile, the block's first.
  __device__ __forceinline__ void add_terms(float (&block)[kScores], int block_row, int key) const {
    const WorkTile& work = storage.work;
    const ScoreBiasParams& terms = params.bias;
    const int column = key + lane_column(lane);
    float unit = params.scale;
    if (params.softcap != 0) {
      score_transform(params)(block);
      unit = 1;
    }
    const auto place = [&](int r) { return bias_place(work, work.place(block_row + lane_row(lane) + 8 * r, params.packed_shift)); };
    if (terms.slopes != nullptr) {
      const RowSlope rows[2] = {RowSlope::of(params, terms, place(0)), RowSlope::of(params, terms, place(1))};
      const auto token = [&](int row) { return work.place(block_row + row, params.packed_shift).token; };
      const int offset = rows[0].diagonal - token(lane_row(lane));
      add_alibi(block, unit, rows, column, side_of(key, Config::kKeyTile, token(0) + offset, token(15) + offset));
    } else {
#pragma unroll
      for (float& x : block) x *= unit;
    }
    if constexpr (Config::kTakesBias) {
      if (terms.bias == nullptr) return;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const Element* const first = bias_row<Element>(terms, place(r)) + column * terms.strides.key;
        add_bias(block, r, BiasColumns<Element>{first, terms.strides.key, terms.in_pairs, work.seq_k - column});
      }
    }
  }

  __device__ __forceinline__ void drop_weights(float (&block)[kScores], int block_row, int key) const {
    const WorkTile& work = storage.work;
    const int first_row = block_row + lane_row(lane);
    const DropoutRow rows[2] = {dropout_row(params, work, work.place(first_row, params.packed_shift)),
                                dropout_row(params, work, work.place(first_row + 8, params.packed_shift))};
    drop(block, storage.work.random, params.bias.last_dropped, rows, key, __float_as_uint(params.zero));
  }

  /// Hides scores of the lane's row r outside columns [begin, end), which count from the lane's first. A bit for each score takes
  /// fewer instructions than mask_row: predicates are loaded seven at a time.
  static __device__ __forceinline__ void mask_row_by_bits(float (&block)[kScores], int r, int begin, int end) {
    static_assert(kScores <= 64);
    // Scores of the row before a column: the lane has two of every eight columns.
    const auto before = [](int column) {
      const int inside = min(max(column, 0), 2 * kScores);
      return static_cast<unsigned>(inside / 8 * 2 + min(inside % 8, 2));
    };
    const std::uint32_t shown = __funnelshift_lc(0, ~0u, before(begin)) & ~__funnelshift_lc(0, ~0u, before(end));
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      if (row_of(i) == r && (shown & 1u << (i / 4 * 2 + i % 2)) == 0) block[i] = kHidden<float>;
    }
  }

  /// `first_row`: of the query tile, the lane's first row of the block.
  __device__ __forceinline__ void mask(float (&block)[kScores], int first_row, int key) const {
    const WorkTile& work = storage.work;
    const int column = key + lane_column(lane);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const WorkTile::Keys seen = work.keys_of(work.token + ((first_row + 8 * r) >> params.packed_shift));
      const int begin = seen.begin - column, end = seen.end - column;
      if constexpr (Config::kBiased) {
        mask_row(block, r, begin, end);  // by bits f16 at head dim 128 spills registers
      } else {
        mask_row_by_bits(block, r, begin, end);
      }
    }
  }

  /// The same by the bits of a partial block.
  __device__ __forceinline__ void hide_by_bits(float (&block)[kScores], int first_row, const std::int32_t* tile_bits) const {
    TileBits<Config::kKeyTile> bits;
    bits.load(params.lists, tile_bits, first_row >> params.packed_shift, (first_row + 8) >> params.packed_shift);
    bits.hide(block, lane);
  }

  /// The same of keys whose bit is 0.
  __device__ __forceinline__ void hide(float (&block)[kScores], int first_row, int key) const {
    const WorkTile& work = storage.work;
    if (params.bits.tail != 0 && key + Config::kKeyTile <= work.seq_k - params.bits.tail) return;
    const MaskBegin begin = mask_begin(params, work);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const RowBits bits = RowBits::of(params.bits, begin, work.token + ((first_row + 8 * r) >> params.packed_shift));
#pragma unroll
      for (int at = 0; at < Config::kKeyTile; at += 64) hide_unshown(block, r, bits.of_keys(key + at), at, lane);
    }
  }

  const Params& params;
  Storage<Config>& storage;
  const int lane, warp_row;  // of the query tile, the warp's first row
  std::uint32_t queries;     // the lane's ldmatrix address in the warp's rows
  std::uint32_t kept[kKeepQueries ? kSteps : 1][kBlocks][4];
  float scores[kBlocks][kScores], out[kBlocks][kOut];
  OnlineSoftmax<Warp, kScores> softmax[kBlocks];
};

}  // namespace fovea::gpu::portable::attention
