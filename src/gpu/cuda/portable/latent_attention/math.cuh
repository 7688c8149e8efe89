// SPDX-License-Identifier: Apache-2.0
/// The MMAs and the softmax of a warp, key tile by key tile. Queries and accumulators stay in registers.
#pragma once

#include "gpu/common/score_transform.cuh"
#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/mma.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/portable/latent_attention/rows.cuh"

namespace fovea::gpu::portable::latent_attention {

/// Barrier of the warps of a row group; 0 is that of the CTA.
template <class Config>
__device__ __forceinline__ void group_barrier(int group) {
  if constexpr (Config::kRowGroups == 1) {
    __syncthreads();
  } else {
    asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(32 * Config::kGroupWarps) : "memory");
  }
}

template <class Config>
class Math {
  using Element = typename Config::Element;
  using Rows = KeyRows<Config>;

 public:
  static constexpr int kKeys = Config::kKeys, kScores = kKeys / 2, kOut = Config::kColumns / 2;

  __device__ Math(const Params& params_, Storage<Config>& storage_, int kv_head_)
      : params(params_),
        score(score_transform(params_)),
        storage(storage_),
        kv_head(kv_head_),
        lane(static_cast<int>(threadIdx.x) % 32),
        group(static_cast<int>(threadIdx.x) / 32 / Config::kGroupWarps),
        member(static_cast<int>(threadIdx.x) / 32 % Config::kGroupWarps),
        part(member % Config::kParts),
        first_key(member / Config::kParts * Config::kPartKeys) {
    const MatrixPlace place = a_operand_place(lane);
    k_from = storage.keys(0) + (static_cast<std::uint32_t>(Rows::offset(first_key + place.row, place.chunk)) ^ (32 * part));
    const MatrixPlace values = b_operand_place(lane);
    v_from = storage.keys(0) + static_cast<std::uint32_t>(Rows::offset(values.row, values.chunk) + member * (2 * Config::kColumns));
  }

  /// Loads the queries of a work tile, while its first keys arrive.
  __device__ __forceinline__ void begin(const WorkTile& work) {
    softmax.begin();
    largest[0] = largest[1] = -INFINITY;
#pragma unroll
    for (float& x : out) x = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int own = row(r), token = params.group.quotient(work.row + own);
      seen_begin[r] = max(token + work.low, work.begin);
      seen_end[r] = min(token + work.high + 1, work.end);
      TileRow<Config>{params, work, kv_head, own}.load<0>(16 * part + lane_column(lane), r, queries);
    }
  }

  /// Products of this warp's part of the keys, for the others of its row group.
  __device__ __forceinline__ void multiply_keys(int buffer) {
    float products[Config::kPartKeys / 2] = {};
    const std::uint32_t keys = k_from + buffer * Config::kStageBytes;
#pragma unroll
    for (int step = 0; step < Config::kSteps; ++step) {
#pragma unroll
      for (int n = 0; n < Config::kPartKeys / 16; ++n) {
        std::uint32_t k[4];
        ldmatrix(k, Rows::advanced(keys, first_column<Config>(step)) + 16 * n * Rows::kRowBytes);
        mma<Element>(&products[8 * n], queries[step], k[0], k[2]);
        mma<Element>(&products[8 * n + 4], queries[step], k[1], k[3]);
      }
    }
    auto& to = storage.products[group][part];
#pragma unroll
    for (int n = 0; n < Config::kPartKeys / 8; ++n) {
      to[first_key / 8 + n][lane] = {products[4 * n], products[4 * n + 1], products[4 * n + 2], products[4 * n + 3]};
    }
  }

  /// Waits until all warps of the row group have stored their products.
  __device__ __forceinline__ void await_products() const { group_barrier<Config>(group); }

  /// Softmax and values of a tile, after that barrier. `masked`: not all rows see all keys.
  __device__ __forceinline__ void accumulate(int tile, int stage, bool masked, int buffer) {
    float scores[kScores];
    apply_softmax(scores, tile, stage, masked);
    multiply_values(scores, buffer);
  }

  /// Stores the results of a work tile, or partial ones.
  __device__ __forceinline__ void store(const WorkTile& work) {
    softmax.reduce_sum();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float most = Warp::largest_of_row(largest[r]);
      const int column = member * Config::kColumns + lane_column(lane);
      TileRow<Config>{params, work, kv_head, row(r)}.store({softmax.maximum[r], softmax.sum[r]}, most, score.scale_log2, column, out, r);
    }
  }

 private:
  __device__ __forceinline__ void apply_softmax(float (&scores)[kScores], int tile, int stage, bool masked) {
    const auto& from = storage.products[group];
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      float4 sum = from[0][n][lane];
#pragma unroll
      for (int p = 1; p < Config::kParts; ++p) {
        const float4 x = from[p][n][lane];
        sum = {sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w};
      }
      scores[4 * n] = sum.x;
      scores[4 * n + 1] = sum.y;
      scores[4 * n + 2] = sum.z;
      scores[4 * n + 3] = sum.w;
    }
    score(scores);
    if (masked) {
      const int key = tile * kKeys + lane_column(lane);
#pragma unroll
      for (int r = 0; r < 2; ++r) mask_row(scores, r, seen_begin[r] - key, seen_end[r] - key);
    }
    if (params.listed) hide_absent(scores, stage);
    if (params.max_logits != nullptr) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) largest[row_of(i)] = fmaxf(largest[row_of(i)], scores[i]);
    }
    const bool grown = softmax(scores, score.scale_log2, params.zero);
    softmax.quick = false;
    if (!grown) return;
#pragma unroll
    for (int i = 0; i < kOut; ++i) out[i] *= softmax.rescale[row_of(i)];
  }

  __device__ __forceinline__ void multiply_values(const float (&p)[kScores], int buffer) {
    const std::uint32_t values = v_from + buffer * Config::kStageBytes;
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      std::uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = pack<Element>(p[8 * n + 2 * i], p[8 * n + 2 * i + 1]);
#pragma unroll
      for (int column = 0; column < Config::kColumns; column += 16) {
        std::uint32_t v[4];
        ldmatrix_trans(v, Rows::advanced(values, column) + 16 * n * Rows::kRowBytes);
        mma<Element>(&out[column / 2], a, v[0], v[2]);
        mma<Element>(&out[column / 2 + 4], a, v[1], v[3]);
      }
    }
  }

  __device__ int row(int r) const { return group * 16 + lane_row(lane) + 8 * r; }

  /// Hides scores of keys that the tile lacks.
  __device__ __forceinline__ void hide_absent(float (&scores)[kScores], int stage) const {
    const unsigned present = __ballot_sync(~0u, storage.sources[stage][lane] != kAbsent) >> lane_column(lane);
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      if ((present >> column_of(i) & 1) == 0) scores[i] = -INFINITY;
    }
  }

  const Params& params;
  const ScoreTransform<Warp> score;
  Storage<Config>& storage;
  const int kv_head, lane, group, member, part, first_key;
  std::uint32_t k_from, v_from;    // addresses of the lane's row and chunk in the first stage
  int seen_begin[2], seen_end[2];  // keys that the lane's rows see
  std::uint32_t queries[Config::kSteps][4];
  float out[kOut];
  float largest[2];  // scores, if max_logits are wanted
  OnlineSoftmax<Warp, kScores> softmax;
};

}  // namespace fovea::gpu::portable::latent_attention
