// SPDX-License-Identifier: Apache-2.0
/// Addresses of gathered rows, from the block table or from the lists of a query.
#pragma once

#include "gpu/cuda/sm90/latent_attention/work.cuh"
#include "gpu/cuda/sm90/wgmma.cuh"

namespace fovea::gpu::sm90::latent {

/// Place of a token: units of Params::unit bytes from the cache's begin, and bytes from the token to its scales.
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

__device__ inline const std::byte* data_of(const RowCache& cache) { return cache.data + blockIdx.y * cache.head_stride; }

/// The keys of a sequence: its row of the block table, or the lists of its query. A load warp computes it once a sequence and keeps it in
/// shared memory.
struct KeyList {
  const std::int32_t* main = nullptr;
  const std::int32_t* extra = nullptr;  // address at which key 0 would be
  int begin = 0, main_end = 0;          // keys of the main cache
  int extra_begin = 0, end = 0;         // keys of the extra one

  /// Each key tile has keys of one cache.
  __device__ const RowCache& cache_of(const Params& params, int key) const { return key >= extra_begin ? params.extra : params.main; }
};

/// Without lists, the keys are those that some row of the cluster's query tiles sees.
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

/// The entry of a key: a block from the table, or a token's index from the list; negative for an absent key. Its use comes much later.
__device__ inline int look_up(const Params& params, const KeyList& list, int key) {
  const bool extra = key >= list.extra_begin;
  if (key < list.begin || key >= (extra ? list.end : list.main_end)) return -1;
  // No __ldg: the previous kernel may write the list after this kernel has started.
  return (extra ? list.extra : list.main)[params.listed ? key : params.main.page.quotient(key)];
}

/// Whether an entry names a token.
__device__ inline bool is_token(const Params& params, const RowCache& cache, int entry) {
  return static_cast<std::uint32_t>(entry) < (params.listed ? cache.tokens : static_cast<std::uint32_t>(cache.blocks));
}

/// The token that an entry names for a key. All tokens lie below 2^32 units.
__device__ inline Token locate(const Params& params, const RowCache& cache, int key, int entry) {
  if (!is_token(params, cache, entry)) return {};
  const int at = params.listed ? entry : key, page = cache.page.quotient(at);
  const std::uint32_t slot = at - page * cache.page.divisor, block = params.listed ? page : entry;
  return {block * cache.block_stride + slot * cache.token_stride, cache.scales_at + static_cast<int>(slot) * cache.scale_stride};
}

/// The i-th half of a pair of tiles, in the order in which consumers release them: even left, even right, odd right, odd left.
__device__ constexpr int buffer_of(int i) { return i / 2; }
__device__ constexpr int half_of(int i) { return (i ^ i / 2) & 1; }

/// Bytes from the even tile's begin to the first slice of the i-th half of a pair of tiles.
__device__ constexpr int place_of(int i) { return buffer_of(i) * kGroups * kKeyGroup + half_of(i) * kHalfSlices * kGroupBytes; }

}  // namespace fovea::gpu::sm90::latent
