// SPDX-License-Identifier: Apache-2.0
/// Where the keys of a request lie that come one by one: through the block table, or as the query lists them.
#pragma once

#include "gpu/cuda/sm90/latent_attention/work.cuh"

namespace fovea::gpu::sm90::latent {

/// Where a token's bytes lie, from the begin of its cache on, in Params::unit bytes, and its scales, in bytes from there on.
struct Token {
  static constexpr std::uint32_t kNone = ~0u;
  std::uint32_t at = kNone;
  int scales = 0;

  __device__ bool present() const { return at != kNone; }
};

/// Address of the token at a place that is not kNone.
__device__ inline const std::byte* token_at(const Params& params, const std::byte* data, std::uint32_t at) {
  return data + std::uint64_t{at} * params.unit;
}

/// Tiles are from one cache each.
__device__ inline bool is_extra(const Params& params, const Request& request, int pair, int buffer) {
  return params.listed && pair * kPair + buffer * kKeyTile >= request.extra_begin();
}
__device__ inline const RowCache& cache_of(const Params& params, const Request& request, int pair, int buffer) {
  return is_extra(params, request, pair, buffer) ? params.extra : params.main;
}
__device__ inline const std::byte* data_of(const RowCache& cache) { return cache.data + blockIdx.y * cache.head_stride; }

/// Where it is written which keys a request has: its row of the block table, or the lists of its query. Worked out once a request, and kept
/// in shared memory: what a load warp does for each pair of tiles is short.
struct KeyList {
  const std::int32_t* main = nullptr;
  const std::int32_t* extra = nullptr;  // as if it began with the first key
  int begin = 0, main_end = 0;          // keys of the main cache
  int extra_begin = 0, end = 0;         // and of the other one

  __device__ const RowCache& cache_of(const Params& params, int key) const { return key >= extra_begin ? params.extra : params.main; }
};

/// Without lists, keys that no row of the `kCluster` row tiles sees that share them are left out.
template <int kCluster>
__device__ inline KeyList list_of(const Params& params, const Request& request) {
  const detail::TileRange keys =
      params.listed ? request.keys : visible_to(params, request, blockIdx.x / kCluster * kCluster, kCluster).some;
  if (!params.listed) return {params.block_table + request.index * params.table_stride, nullptr, keys.begin, keys.end, kKeyLimit, keys.end};
  const auto begin = [&](const RowCache& cache) {
    return cache.indices + request.batch * cache.indices_batch + request.q_begin * cache.indices_row;
  };
  if (params.extra.topk == 0) return {begin(params.main), nullptr, keys.begin, request.main_len, kKeyLimit, keys.end};
  const int extra = request.extra_begin();
  return {begin(params.main), begin(params.extra) - extra, keys.begin, request.main_len, extra, keys.end};
}

/// What the table or the list says of a key: a block, or an index. Negative: there is no such key. To be asked for long before it is used.
__device__ inline int look_up(const Params& params, const KeyList& list, int key) {
  const bool extra = key >= list.extra_begin;
  if (key < list.begin || key >= (extra ? list.end : list.main_end)) return -1;
  // No __ldg: the kernel before this one may have written the list after this one was launched.
  return (extra ? list.extra : list.main)[params.listed ? key : params.main.page.quotient(key)];
}

/// Whether there is a token behind what was found.
__device__ inline bool is_token(const Params& params, const RowCache& cache, int found) {
  return static_cast<std::uint32_t>(found) < (params.listed ? cache.tokens : static_cast<std::uint32_t>(cache.blocks));
}

/// The token behind what was found for a key. Places are whole units, below 2^32 of them.
__device__ inline Token locate(const Params& params, const RowCache& cache, int key, int found) {
  if (!is_token(params, cache, found)) return {};
  const int at = params.listed ? found : key, page = cache.page.quotient(at);
  const std::uint32_t slot = at - page * cache.page.divisor, block = params.listed ? page : found;
  return {block * cache.block_stride + slot * cache.token_stride, cache.scales_at + static_cast<int>(slot) * cache.scale_stride};
}

/// Halves of a pair of tiles in the order in which the math gives them back: left and right of the even tile, right and left of the odd.
__device__ constexpr int buffer_of(int i) { return i / 2; }
__device__ constexpr int half_of(int i) { return (i ^ i / 2) & 1; }

}  // namespace fovea::gpu::sm90::latent
