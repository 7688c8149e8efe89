// SPDX-License-Identifier: Apache-2.0
/// Where the keys of a request lie that come one by one: through the block table, or as the query lists them.
#pragma once

#include "gpu/cuda/sm90/latent_attention/work.cuh"

namespace fovea::gpu::sm90::latent {

/// A token's bytes and its scales, from the begin of its cache on, in units of 16 and of 8 bytes.
struct Token {
  static constexpr std::uint32_t kNone = ~0u;
  static constexpr std::size_t kUnit = 16, kScaleUnit = 8;
  std::uint32_t at = kNone, scales = 0;

  __device__ bool present() const { return at != kNone; }
};

/// Tiles are from one cache each.
__device__ inline bool is_extra(const Params& params, const Request& request, int pair, int buffer) {
  return params.listed && pair * kPair + buffer * kKeyTile >= request.extra_begin();
}
__device__ inline const RowCache& cache_of(const Params& params, const Request& request, int pair, int buffer) {
  return is_extra(params, request, pair, buffer) ? params.extra : params.main;
}
__device__ inline const std::byte* data_of(const RowCache& cache) { return cache.data + blockIdx.y * cache.head_stride; }

/// What the table or the list says of the key of this row of a tile: a block, or an index. Negative: there is no such key. To be asked for
/// long before it is used.
__device__ inline int look_up(const Params& params, const Request& request, int pair, int buffer, int row) {
  const int key = pair * kPair + buffer * kKeyTile + row;
  if (key < request.keys.begin || key >= request.keys.end) return -1;
  if (!params.listed) return __ldg(params.block_table + request.index * params.table_stride + key / params.main.page);
  const bool extra = is_extra(params, request, pair, buffer);
  const RowCache& cache = extra ? params.extra : params.main;
  if (!extra && key >= request.main_len) return -1;
  const std::int64_t list = request.batch * cache.indices_batch + request.q_begin * cache.indices_row;
  return __ldg(cache.indices + list + (extra ? key - request.extra_begin() : key));
}

/// The token behind what was found.
__device__ inline Token locate(const Params& params, const Request& request, int pair, int buffer, int row, int found) {
  const RowCache& cache = cache_of(params, request, pair, buffer);
  const int block = params.listed ? found / cache.page : found;
  const int slot = params.listed ? found - block * cache.page : (pair * kPair + buffer * kKeyTile + row) % cache.page;
  if (found < 0 || block >= cache.blocks) return {};
  const std::int64_t begin = block * cache.block_stride;
  const std::int64_t scales = begin + cache.scales_at + static_cast<std::int64_t>(slot) * cache.scale_stride;
  return {static_cast<std::uint32_t>((begin + slot * cache.token_stride) / Token::kUnit),
          static_cast<std::uint32_t>(scales / Token::kScaleUnit)};
}

/// Halves of a pair of tiles in the order in which the math gives them back: left and right of the even tile, right and left of the odd.
__device__ constexpr int buffer_of(int i) { return i / 2; }
__device__ constexpr int half_of(int i) { return (i ^ i / 2) & 1; }

}  // namespace fovea::gpu::sm90::latent
