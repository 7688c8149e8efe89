// SPDX-License-Identifier: Apache-2.0
/// Addresses of gathered rows: through the block table, or from the lists of a query.
#pragma once

#include "gpu/cuda/sm90/latent_attention/work.cuh"
#include "gpu/cuda/sm90/wgmma.cuh"

namespace fovea::gpu::sm90::latent {

/// Where a token lies: units of Params::unit bytes from the begin of its cache, and bytes from there to its scales.
struct Token {
  static constexpr std::uint32_t kNone = ~0u;
  std::uint32_t at = kNone;
  int scales = 0;

  __device__ bool present() const { return at != kNone; }
};

/// Address of a token that is not kNone.
__device__ inline const std::byte* token_at(const Params& params, const std::byte* data, std::uint32_t at) {
  return data + std::uint64_t{at} * params.unit;
}

/// Each key tile is from one cache.
__device__ inline bool is_extra(const Params& params, const Sequence& sequence, int pair, int buffer) {
  return params.listed && pair * kPair + buffer * kKeyTile >= sequence.extra_begin();
}
__device__ inline const RowCache& cache_of(const Params& params, const Sequence& sequence, int pair, int buffer) {
  return is_extra(params, sequence, pair, buffer) ? params.extra : params.main;
}
__device__ inline const std::byte* data_of(const RowCache& cache) { return cache.data + blockIdx.y * cache.head_stride; }

/// What names the keys of a sequence: its row of the block table, or the lists of its query. It is computed once a sequence and kept in
/// shared memory, so that a load warp does little for each pair of tiles.
struct KeyList {
  const std::int32_t* main = nullptr;
  const std::int32_t* extra = nullptr;  // pointer to where key 0 would be
  int begin = 0, main_end = 0;          // keys of the main cache
  int extra_begin = 0, end = 0;         // keys of the extra one

  __device__ const RowCache& cache_of(const Params& params, int key) const { return key >= extra_begin ? params.extra : params.main; }
};

/// Without lists, leaves out the keys that no row of the cluster's `kCluster` query tiles sees.
template <int kCluster>
__device__ inline KeyList list_of(const Params& params, const Sequence& sequence) {
  const detail::TileRange keys =
      params.listed ? sequence.keys : visible_to(params, sequence, blockIdx.x / kCluster * kCluster, kCluster).some;
  if (!params.listed)
    return {params.block_table + sequence.index * params.table_stride, nullptr, keys.begin, keys.end, kKeyLimit, keys.end};
  const auto begin = [&](const RowCache& cache) {
    return cache.indices + sequence.batch * cache.indices_batch + sequence.q_begin * cache.indices_row;
  };
  if (params.extra.topk == 0) return {begin(params.main), nullptr, keys.begin, sequence.main_len, kKeyLimit, keys.end};
  const int extra = sequence.extra_begin();
  return {begin(params.main), begin(params.extra) - extra, keys.begin, sequence.main_len, extra, keys.end};
}

/// The block or the index that the table or the list holds for a key; negative for an absent key. The load is issued long before its use.
__device__ inline int look_up(const Params& params, const KeyList& list, int key) {
  const bool extra = key >= list.extra_begin;
  if (key < list.begin || key >= (extra ? list.end : list.main_end)) return -1;
  // No __ldg: the kernel before this one may write the list after this one was launched.
  return (extra ? list.extra : list.main)[params.listed ? key : params.main.page.quotient(key)];
}

/// Whether `found` names a token.
__device__ inline bool is_token(const Params& params, const RowCache& cache, int found) {
  return static_cast<std::uint32_t>(found) < (params.listed ? cache.tokens : static_cast<std::uint32_t>(cache.blocks));
}

/// The token that `found` names for a key. All tokens lie below 2^32 units.
__device__ inline Token locate(const Params& params, const RowCache& cache, int key, int found) {
  if (!is_token(params, cache, found)) return {};
  const int at = params.listed ? found : key, page = cache.page.quotient(at);
  const std::uint32_t slot = at - page * cache.page.divisor, block = params.listed ? page : found;
  return {block * cache.block_stride + slot * cache.token_stride, cache.scales_at + static_cast<int>(slot) * cache.scale_stride};
}

/// Halves of a pair of tiles in the order in which consumers release them: left and right of the even tile, right and left of the odd one.
__device__ constexpr int buffer_of(int i) { return i / 2; }
__device__ constexpr int half_of(int i) { return (i ^ i / 2) & 1; }

/// Bytes from the even tile's begin to the first slice of the i-th half of a pair of tiles.
__device__ constexpr int place_of(int i) { return buffer_of(i) * kGroups * kKeyGroup + half_of(i) * kHalfSlices * kGroupBytes; }

}  // namespace fovea::gpu::sm90::latent
