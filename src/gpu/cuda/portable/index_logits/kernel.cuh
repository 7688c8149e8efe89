// SPDX-License-Identifier: Apache-2.0
/// A CTA keeps a tile of keys as operands in registers and takes one query after the other: products with all heads, max(0, .), and the
/// weighted sum over heads. Codes of e4m3 become halves, exactly.
#pragma once

#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "gpu/cuda/common/mma.cuh"
#include "gpu/cuda/common/quantize.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/portable/index_logits/params.hpp"
#include "op/index_logits/keys.hpp"

namespace fovea::gpu::portable::indexer {

/// A pack of 16 codes.
__device__ inline uint4 load_codes(const void* from, bool aligned) {
  if (aligned) return __ldg(static_cast<const uint4*>(from));
  uint4 codes;
#pragma unroll
  for (int i = 0; i < 16; ++i) reinterpret_cast<std::uint8_t*>(&codes)[i] = static_cast<const std::uint8_t*>(from)[i];
  return codes;
}

/// Columns of an operand lie in memory so that a lane finds its own side by side: of a row of kDim codes, lane t of four has kDim / 4 from
/// t kDim / 4 on, four for each step of 16. Keys and queries have the same order, so products do not change.
template <int kDim>
struct Layout {
  static constexpr int kSteps = kDim / 16, kPacksOfLane = kDim / 64, kPacksOfRow = kDim / 16;
  static constexpr int kPairs = kSteps / 2;  ///< of steps: 16 bytes of halves for a lane
};

/// The keys of a warp as A operands.
template <int kDim>
struct Keys {
  using Layout = Layout<kDim>;
  std::uint32_t operand[kMmas][Layout::kSteps][4];
  float scale;  ///< of the key whose logit the lane stores; NaN for a block that the cache does not have

  /// Keys of no row are zeros.
  __device__ void load(const Params& params, std::int64_t row, std::int64_t first_key) {
    const int lane = threadIdx.x % 32;
    const auto place_of = [&](std::int64_t key) {
      const bool seen = key < params.shape.columns && (!params.shape.paged || key < params.shape.max_blocks * params.shape.page);
      return seen ? detail::place_of_key(params.shape, params.args, row, key) : detail::KeyPlace{};
    };
#pragma unroll
    for (int i = 0; i < kMmas; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const detail::KeyPlace place = place_of(first_key + i * kRowsOfMma + half * 8 + lane / 4);
        const auto* from = static_cast<const std::uint8_t*>(params.args.k) + place.k + lane % 4 * (kDim / 4);
#pragma unroll
        for (int pack = 0; pack < Layout::kPacksOfLane; ++pack) {
          const uint4 codes = place.known ? load_codes(from + pack * 16, params.aligned) : uint4{};
          const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
          for (int word = 0; word < 4; ++word) {
            operand[i][pack * 4 + word][half] = halves_from_e4m3(words[word] & 0xffff);
            operand[i][pack * 4 + word][2 + half] = halves_from_e4m3(words[word] >> 16);
          }
        }
      }
    }
    const detail::KeyPlace own = place_of(first_key + key_of_lane());
    scale = own.known ? params.args.k_scale[own.scale] : std::numeric_limits<float>::quiet_NaN();
  }

  /// Lanes of a quad store a key each, of the four that they have sums of.
  __device__ static int key_of_lane() {
    const int lane = threadIdx.x % 32;
    return lane % 4 / 2 * kRowsOfMma + lane % 2 * 8 + lane / 4;
  }
};

/// A head tile of one query, on its way into shared memory.
template <int kDim>
struct Query {
  using Layout = Layout<kDim>;
  static constexpr int kPacks = kHeadTile * Layout::kPacksOfRow, kPacksOfThread = (kPacks + kThreads - 1) / kThreads;
  uint4 codes[kPacksOfThread];
  float weight;

  __device__ void load(const Params& params, std::int64_t row, std::int64_t first_head) {
#pragma unroll
    for (int i = 0; i < kPacksOfThread; ++i) {
      const int pack = i * kThreads + static_cast<int>(threadIdx.x);
      const std::int64_t head = first_head + pack / Layout::kPacksOfRow;
      const auto* from = static_cast<const std::uint8_t*>(params.args.q) + row * params.shape.q_row + head * params.shape.q_head;
      codes[i] = head < params.shape.heads ? load_codes(from + pack % Layout::kPacksOfRow * 16, params.aligned) : uint4{};
    }
    const std::int64_t head = first_head + threadIdx.x;
    weight = threadIdx.x < kHeadTile && head < params.shape.heads ? params.args.weights[row * params.shape.weights_row + head] : 0.0f;
  }
};

template <int kDim>
struct Shared {
  using Layout = Layout<kDim>;
  uint4 q[2][kHeadTile / 8][Layout::kPairs][32];  ///< B operands of two steps each, as the lanes read them
  float weights[2][kHeadTile];

  __device__ void store(int buffer, const Query<kDim>& query) {
#pragma unroll
    for (int i = 0; i < Query<kDim>::kPacksOfThread; ++i) {
      const int pack = i * kThreads + static_cast<int>(threadIdx.x), head = pack / Layout::kPacksOfRow, place = pack % Layout::kPacksOfRow;
      const int lane = head % 8 * 4 + place / Layout::kPacksOfLane, pair = place % Layout::kPacksOfLane * 2;
      const uint4 codes = query.codes[i];
      const auto halves = [](std::uint32_t a, std::uint32_t b) {
        return uint4{halves_from_e4m3(a & 0xffff), halves_from_e4m3(a >> 16), halves_from_e4m3(b & 0xffff), halves_from_e4m3(b >> 16)};
      };
      q[buffer][head / 8][pair][lane] = halves(codes.x, codes.y);
      q[buffer][head / 8][pair + 1][lane] = halves(codes.z, codes.w);
    }
    if (threadIdx.x < kHeadTile) weights[buffer][threadIdx.x] = query.weight;
  }
};

/// Adds the weighted products with `heads` heads to the lane's sums, one for each of its rows of keys.
template <int kDim>
__device__ inline void add_heads(const Shared<kDim>& shared, int buffer, const Keys<kDim>& keys, int heads, float (&sums)[kMmas][2]) {
  constexpr int kTiles = 2;  // of eight heads, side by side
  const int lane = threadIdx.x % 32;
  for (int tile = 0; tile < heads; tile += 8 * kTiles) {
    float products[kMmas][kTiles][4] = {};
#pragma unroll
    for (int pair = 0; pair < Layout<kDim>::kPairs; ++pair) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const uint4 b = shared.q[buffer][tile / 8 + t][pair][lane];
#pragma unroll
        for (int i = 0; i < kMmas; ++i) {
          mma<__half>(products[i][t], keys.operand[i][2 * pair], b.x, b.y);
          mma<__half>(products[i][t], keys.operand[i][2 * pair + 1], b.z, b.w);
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const float2 weights = *reinterpret_cast<const float2*>(&shared.weights[buffer][tile + 8 * t + lane % 4 * 2]);
#pragma unroll
      for (int i = 0; i < kMmas; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float product = products[i][t][e];
          sums[i][e / 2] += (product < 0.0f ? 0.0f : product) * (e % 2 == 0 ? weights.x : weights.y);  // NaN stays
        }
      }
    }
  }
}

/// Stores the tile's logits of one query, and what it does not see.
template <class Out, int kDim>
__device__ inline void store_logits(const Params& params, std::int64_t row, std::int64_t first_key, const Keys<kDim>& keys,
                                    float (&sums)[kMmas][2], const detail::KeyRange& seen) {
#pragma unroll
  for (int i = 0; i < kMmas; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) sums[i][half] = Warp::sum_of_row(sums[i][half]);
  }
  const int lane = threadIdx.x % 32;
  const float of_first = lane % 2 == 0 ? sums[0][0] : sums[0][1], of_second = lane % 2 == 0 ? sums[1][0] : sums[1][1];
  const std::int64_t key = first_key + Keys<kDim>::key_of_lane();
  const bool is_seen = key >= seen.begin && key < seen.end;
  if (key >= params.shape.columns || (!is_seen && params.shape.keep_outside)) return;
  const float logit = is_seen ? (lane % 4 < 2 ? of_first : of_second) * keys.scale : -std::numeric_limits<float>::infinity();
  static_cast<Out*>(params.args.out)[row * params.shape.out_row + key] = static_cast<Out>(logit);
}

/// Blocks of the grid: key tiles, of every group of rows.
template <class Out, int kDim>
__global__ void __launch_bounds__(kThreads, 2) index_logits(const __grid_constant__ Params params) {
  __shared__ Shared<kDim> shared;
  const std::int64_t group = blockIdx.x / params.key_tiles, tile = (blockIdx.x - group * params.key_tiles) * kKeyTile;
  const std::int64_t begin = group * params.rows_of_group, end = min(begin + params.rows_of_group, params.shape.rows);
  const std::int64_t first_key = tile + threadIdx.x / 32 * kKeysOfWarp;
  const auto seen_of = [&](std::int64_t row) { return detail::keys_of_row(params.shape, params.args, row); };
  const auto next_row = [&](std::int64_t row) {  // from this one on, the first that sees a key of the tile
    for (; row < end; ++row) {
      const detail::KeyRange seen = seen_of(row);
      if (seen.begin < tile + kKeyTile && seen.end > tile) break;
    }
    return row;
  };
  std::int64_t row = next_row(begin), stored = begin;
  const auto store_unseen = [&](std::int64_t until) {  // rows before it that see no key of the tile
    for (; stored < until && !params.shape.keep_outside; ++stored) {
      const std::int64_t key = tile + threadIdx.x;
      if (key < params.shape.columns) {
        static_cast<Out*>(params.args.out)[stored * params.shape.out_row + key] = static_cast<Out>(-std::numeric_limits<float>::infinity());
      }
    }
    stored = until + 1;
  };
  Keys<kDim> keys;
  Query<kDim> query;
  if (row < end) {
    keys.load(params, row, first_key);
    query.load(params, row, 0);
  }
  float sums[kMmas][2] = {};
  std::int64_t first_head = 0;
  for (int buffer = 0; row < end; buffer ^= 1) {
    shared.store(buffer, query);
    __syncthreads();  // the other buffer's readers have come here too
    const bool last_heads = first_head + kHeadTile >= params.shape.heads;
    const std::int64_t next = last_heads ? next_row(row + 1) : row, next_head = last_heads ? 0 : first_head + kHeadTile;
    if (next < end) query.load(params, next, next_head);
    add_heads(shared, buffer, keys, static_cast<int>(min(params.shape.heads - first_head, std::int64_t{kHeadTile})), sums);
    if (last_heads) {
      store_unseen(row);
      store_logits<Out>(params, row, first_key, keys, sums, seen_of(row));
      for (auto& of_mma : sums) of_mma[0] = of_mma[1] = 0.0f;
    }
    row = next;
    first_head = next_head;
  }
  store_unseen(end);
}

}  // namespace fovea::gpu::portable::indexer
