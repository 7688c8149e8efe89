// SPDX-License-Identifier: Apache-2.0
/// The MMAs and the softmax of a warp. The four warps of a row group share its rows: README.md has
/// their parts.
#pragma once

#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/common/mma.cuh"
#include "gpu/cuda/common/named_barrier.cuh"
#include "gpu/cuda/portable/wide_attention/epilogue.cuh"
#include "gpu/cuda/portable/wide_attention/load.cuh"

namespace fovea::gpu::portable::wide_attention {

template <class Config>
class Math {
 public:
  __device__ Math(const Params& params_, Storage<Config>& storage_)
      : params(params_),
        storage(storage_),
        lane(static_cast<int>(threadIdx.x) % 32),
        warp(static_cast<int>(threadIdx.x) / 32),
        group_row(warp / kColumnWarps * Config::kGroupRows),
        member(warp % kColumnWarps),
        half(member % kParts),
        first_key(member / kParts * Config::kPartKeys) {}

  /// Computes key tiles from the last to the first. Loads of the queries and of the last tile's
  /// keys have been issued.
  __device__ __forceinline__ void operator()(const Loader<Config>& load) {
    begin();
    const int first = storage.work.first;
    for (int tile = storage.work.last - 1; tile >= first; --tile) {
      copy_async_wait<0>();
      __syncthreads();  // this tile's keys have arrived, and the values before have been read
      load.values(tile);
      copy_async_commit();
      // A row group that sees nothing passes the same barriers: checkers of races count them.
      const bool seen = sees(tile);
      if (seen) {
        compute_scores(tile);
      } else {
        pair_barrier();
      }
      copy_async_wait<0>();
      __syncthreads();  // values and largest scores have arrived, and this tile's keys have been read
      if (tile > first) load.keys(tile - 1);
      copy_async_commit();
      if (seen) store_probabilities();
      group_barrier<Config>(warp / kColumnWarps);
      if (seen && member * Config::kColumns < params.head_dim_v) add_values();
    }
    copy_async_wait<0>();
    if (first == storage.work.last) __syncthreads();  // queries alone: the epilogue writes where they arrive
    Epilogue<Config>(params, storage)(softmax, out);
  }

 private:
  using Element = typename Config::Element;
  using WideRows = SwizzledRows<kHeadDim>;
  using ProbabilityRows = SwizzledRows<Config::kKeyTile>;
  static constexpr int kBlocks = Config::kBlocks;
  static constexpr int kProducts = Config::kPartKeys / 2, kScores = Config::kOwnKeys / 2,
                       kOut = Config::kColumns / 2;  // of a lane and block

  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      softmax[b].begin();
#pragma unroll
      for (float& x : out[b]) x = 0;
    }
  }

  /// Whether a row of this group sees a key of the tile.
  __device__ __forceinline__ bool sees(int tile) const {
    const WorkTile& work = storage.work;
    const int token = work.token + (group_row >> params.packed_shift), key = tile * Config::kKeyTile;
    const int last = work.token + ((group_row + Config::kGroupRows - 1) >> params.packed_shift);
    return token < work.seq_q && key <= last + work.high && key + Config::kKeyTile > token + work.low;
  }

  // ---- scores -----------------------------------------------------------------------------------

  /// Scores of the warp's own keys. Their products come from this warp and the next, one half of
  /// the head dim each.
  __device__ __forceinline__ void compute_scores(int tile) {
    float products[kBlocks][kProducts];
    multiply_keys(products);
    exchange(products);
    const bool edge = tile < storage.work.full_first || tile >= storage.work.full_last;
    const ScoreTransform<Warp> transform = score_transform(params);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      transform(scores[b]);
      if (edge) mask(scores[b], row(b), tile * Config::kKeyTile + own_key());
      float largest[2];
      softmax[b].largest_of_warp(scores[b], largest);
      if (lane % 4 == 0) {
#pragma unroll
        for (int r = 0; r < 2; ++r) storage.of_rows[row(b) + 8 * r][member] = largest[r];
      }
    }
  }

  /// products (rows x part of the keys) = Q K^T over a half of the head dim
  __device__ __forceinline__ void multiply_keys(float (&products)[kBlocks][kProducts]) const {
    const MatrixPlace of_queries = a_operand_place(lane), of_keys = b_operand_place(lane);
    const auto part = static_cast<std::uint32_t>(half * 2 * Config::kPartColumns);
    const std::uint32_t queries =
        shared_address(storage.q) + static_cast<std::uint32_t>(WideRows::offset(group_row + of_queries.row, of_queries.chunk)) + part;
    // Both halves of the head dim begin with the keys whose scores stay with the warp.
    const int key = first_key + (of_keys.row ^ (Config::kOwnKeys * half));
    const std::uint32_t keys = shared_address(storage.k) + static_cast<std::uint32_t>(WideRows::offset(key, of_keys.chunk)) + part;
    const auto other = static_cast<std::uint32_t>((half == 0 ? 16 : -16) * WideRows::kRowBytes);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (float& x : products[b]) x = 0;
    }
#pragma unroll
    for (int step = 0; step < Config::kPartColumns / 16; ++step) {
      std::uint32_t q[kBlocks][4];
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) ldmatrix(q[b], WideRows::advanced(queries, 16 * step) + b * 16 * WideRows::kRowBytes);
#pragma unroll
      for (int n = 0; n < Config::kPartKeys / 16; ++n) {
        std::uint32_t k[4];
        ldmatrix(k, WideRows::advanced(keys, 16 * step) + n * other);
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          mma<Element>(&products[b][8 * n], q[b], k[0], k[1]);
          mma<Element>(&products[b][8 * n + 4], q[b], k[2], k[3]);
        }
      }
    }
  }

  /// Barrier of the warp and the neighbour that has the other half of the head dim.
  __device__ __forceinline__ void pair_barrier() const { named_sync(1 + Config::kGroups + warp / kParts, 32 * kParts); }

  /// Gives the neighbour the second half of the products, and adds the neighbour's to the first.
  __device__ __forceinline__ void exchange(const float (&products)[kBlocks][kProducts]) {
    constexpr int kQuads = kScores / 4;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const float* x = &products[b][kScores + 4 * i];
        storage.exchange[warp][b * kQuads + i][lane] = {x[0], x[1], x[2], x[3]};
      }
    }
    pair_barrier();
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const float4 x = storage.exchange[warp ^ 1][b * kQuads + i][lane];
        const float* own = &products[b][4 * i];
        scores[b][4 * i] = own[0] + x.x;
        scores[b][4 * i + 1] = own[1] + x.y;
        scores[b][4 * i + 2] = own[2] + x.z;
        scores[b][4 * i + 3] = own[3] + x.w;
      }
    }
  }

  /// `first_row`: of the query tile, the lane's first row of the block. `key`: the first of the
  /// scores.
  __device__ __forceinline__ void mask(float (&block)[kScores], int first_row, int key) const {
    const WorkTile& work = storage.work;
    const int column = key + lane_column(lane);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const WorkTile::Keys seen = work.keys_of(work.token + ((first_row + 8 * r) >> params.packed_shift));
      mask_row(block, r, seen.begin - column, seen.end - column);
    }
  }

  // ---- probabilities and values -----------------------------------------------------------------

  /// Turns scores into probabilities for all warps of the row group, and makes `out` relative to
  /// the same maximum.
  __device__ __forceinline__ void store_probabilities() {
    const float scale = score_transform(params).scale_log2;
    const std::uint32_t to = shared_address(storage.p);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      float largest[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float4 of = *reinterpret_cast<const float4*>(storage.of_rows[row(b) + 8 * r]);
        largest[r] = fmaxf(fmaxf(of.x, of.y), fmaxf(of.z, of.w));
      }
      const bool grown = softmax[b].take(scores[b], largest, scale, params.zero);
#pragma unroll
      for (int i = 0; i < kScores; i += 2) {
        const int column = own_key() + column_of(i);
        store_shared_32(
            to + static_cast<std::uint32_t>(ProbabilityRows::offset(row(b) + 8 * row_of(i), column / 8) + 2 * lane_column(lane)),
            pack<Element>(scores[b][i], scores[b][i + 1]));
      }
      if (!grown) continue;
#pragma unroll
      for (int i = 0; i < kOut; ++i) out[b][i] *= softmax[b].rescale[row_of(i)];
    }
  }

  /// out (rows x the warp's columns) += P (rows x key tile) V
  __device__ __forceinline__ void add_values() {
    const MatrixPlace place = a_operand_place(lane);
    const std::uint32_t values =
        shared_address(storage.v) + static_cast<std::uint32_t>(WideRows::offset(place.row, place.chunk) + 2 * Config::kColumns * member);
    const std::uint32_t probabilities =
        shared_address(storage.p) + static_cast<std::uint32_t>(ProbabilityRows::offset(group_row + place.row, place.chunk));
#pragma unroll
    for (int step = 0; step < Config::kKeyTile / 16; ++step) {
      std::uint32_t p[kBlocks][4];
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        ldmatrix(p[b], ProbabilityRows::advanced(probabilities, 16 * step) + b * 16 * ProbabilityRows::kRowBytes);
      }
#pragma unroll
      for (int n = 0; n < Config::kColumns / 16; ++n) {
        std::uint32_t v[4];
        ldmatrix_trans(v, WideRows::advanced(values, 16 * n) + step * 16 * WideRows::kRowBytes);
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          mma<Element>(&out[b][8 * n], p[b], v[0], v[1]);
          mma<Element>(&out[b][8 * n + 4], p[b], v[2], v[3]);
        }
      }
    }
  }

  /// The lane's first row of a block in the query tile.
  __device__ int row(int block) const { return group_row + 16 * block + lane_row(lane); }
  /// The first key of a key tile whose scores stay with the warp.
  __device__ int own_key() const { return first_key + half * Config::kOwnKeys; }

  const Params& params;
  Storage<Config>& storage;
  const int lane, warp, group_row, member, half, first_key;
  float scores[kBlocks][kScores], out[kBlocks][kOut];
  SharedSoftmax<kScores> softmax[kBlocks];
};

}  // namespace fovea::gpu::portable::wide_attention
