// SPDX-License-Identifier: Apache-2.0
/// Keys one by one, e4m3 rows decoded, for two CTAs: of each tile, each decodes every other group of eight rows and sends it to the other.
/// A warp has one of these groups, a lane a quarter of its row. Two half rows are on their way at a time, and what is to be stored is
/// decoded before there is room for it.
///
/// ptxas gives all these loads one scoreboard, and moves arithmetic to where its results are used. So order is made by data: `zero` comes
/// from what has to be there first, and goes into what is to be done later.
#pragma once

#include "gpu/cuda/sm90/cluster.cuh"
#include "gpu/cuda/sm90/latent_attention/by_turns/code_rows.cuh"
#include "gpu/cuda/sm90/latent_attention/by_turns/storage.cuh"

namespace fovea::gpu::sm90::latent {

template <class Config>
class SharedCodeLoader {
 public:
  std::uint32_t parity = 0;  // of the halves' `empty`, flipped: how often they have been filled

  /// At a half's `full`: every thread, when it has stored its part. The other CTA's part counts by its bytes.
  static constexpr int kArrivals = Config::kLoadThreads;

  __device__ SharedCodeLoader(const Params& params_, Storage<Config>& storage_)
      : params(params_), storage(storage_), warp(threadIdx.x % Config::kLoadThreads / 32), lane(threadIdx.x % 32) {
    asm("" : "+r"(warp), "+r"(lane));  // kept: to ask for them again takes longer
    const int row = lane / 4, chunk = lane % 4 * 2;
    to = shared_address(storage.k[0]) + (warp * 2 + cluster_rank()) * kKeyGroup + row * 128 + (chunk ^ row) * 16;
    flip = flip_of(params);
  }

  /// Pairs [begin, end) of tiles, and `before` their first keys, something else. Whether it is the first job does not matter here.
  template <class Before>
  __device__ __forceinline__ void operator()(const Request&, int begin, int end, bool, Before&& before) {
    const KeyList list = storage.lists[warp];  // in registers: products of scores leave reads of shared memory no time
    const Found wanted = look_up(list, begin, end);
    Found found = look_up(list, begin + 1, end);
    Pair rows = find(list, begin, wanted);
    HalfRow a, b;  // by turns
    ask<0>(list, begin, rows, 0, a);
    ask<1>(list, begin, rows, 0, b);  // the loop does so again, and then finds it near: nothing may be on its way where it begins
    before();
    std::uint32_t zero = wait_for<half_of(0)>(a) + wait_for<half_of(1)>(b) + (params.zero & found.own[0] & found.own[1] & found.any);
#pragma unroll 1
    for (int pair = begin; pair < end; ++pair) {
      ask<1>(list, pair, rows, zero, b);
      const Pair next = find(list, pair + 1, found);  // here, where it waits for the even tile's room
      found = look_up(list, pair + 2, end);
      zero = bring<0>(rows.present, a, b);
      ask<2>(list, pair, rows, zero, a);
      zero = bring<1>(0, b, a);
      ask<3>(list, pair, rows, zero, b);
      zero = bring<2>(rows.present, a, b);
      rows = next;
      ask<0>(list, pair + 1, rows, zero, a);
      zero = bring<3>(0, b, a);
      parity ^= 1;
    }
  }

 private:
  using Rows = CodeRows<Config, Config::kRow>;

  static_assert(Config::kCluster == 2 && Config::kRow == Row::e4m3);

  // ---- where the rows are -------------------------------------------------------------------------------------------------------

  /// What the lists say of this lane's row of the even tile and of the odd one; and of one of the warp's rows, of both CTAs: the even
  /// tile's come first.
  struct Found {
    int own[2], any;
  };
  struct Pair {
    Token own[2];
    std::uint32_t present;  // a bit for each row of the warp
  };

  __device__ int own_key(int pair, int buffer) const {
    return pair * kPair + buffer * kKeyTile + (warp * 2 + cluster_rank()) * 8 + lane / 4;
  }
  /// There is nothing to bring from `end` on.
  __device__ Found look_up(const KeyList& list, int pair, int end) const {
    if (pair >= end) return {{-1, -1}, -1};
    const int any = pair * kPair + lane / 16 * kKeyTile + warp * 16 + lane % 16;
    return {{latent::look_up(params, list, own_key(pair, 0)), latent::look_up(params, list, own_key(pair, 1))},
            latent::look_up(params, list, any)};
  }
  __device__ Pair find(const KeyList& list, int pair, const Found& found) const {
    const int even = pair * kPair, odd = even + kKeyTile;
    return {{locate(params, list.cache_of(params, even), own_key(pair, 0), found.own[0]),
             locate(params, list.cache_of(params, odd), own_key(pair, 1), found.own[1])},
            __ballot_sync(~0u, is_token(params, list.cache_of(params, lane < 16 ? even : odd), found.any))};
  }

  // ---- a half -------------------------------------------------------------------------------------------------------------------

  /// The i-th half of a pair, of which `a` has come. Then the next one, `b`, is waited for, before more is asked for: who waits for a load
  /// waits for all that have been asked for.
  template <int i>
  __device__ __forceinline__ std::uint32_t bring(std::uint32_t present, const HalfRow& a, const HalfRow& b) {
    constexpr int kBuffer = buffer_of(i), kHalf = half_of(i), kSlot = kBuffer * 2 + kHalf;
    constexpr int kAt = place_of(i), kCodes = Rows::slices(kHalf);
    std::uint32_t chunks[kCodes][2][4];
    std::uint32_t zero = params.zero;
#pragma unroll
    for (int slice = 0; slice < kCodes; ++slice) Rows::decode_slice(a, slice, lane % 4, flip, chunks[slice]);
#pragma unroll
    for (int word = 0; word < 8; ++word) zero &= chunks[kCodes - 1][word / 4][word % 4];
    barrier_wait(shared_address(&storage.empty[kSlot]), (parity ^ 1) + zero);
    if (kHalf == kBuffer && lane == 0) {
      *reinterpret_cast<std::uint16_t*>(&storage.present[kBuffer][warp * 2]) = static_cast<std::uint16_t>(present >> kBuffer * 16);
    }
#pragma unroll
    for (int slice = 0; slice < kCodes; ++slice) store(kAt + slice * kGroupBytes, chunks[slice]);
    const std::uint32_t full = shared_address(&storage.full[kSlot]);
    if constexpr (kUnderP<i>) send_slice(kAt + (kCodes - 1) * kGroupBytes, chunks[kCodes - 1], full);
    send<i>(kAt, full);
    return wait_for<half_of((i + 1) % kHalves)>(b);
  }

  __device__ __forceinline__ void store(int at, const std::uint32_t (&chunks)[2][4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) store_shared((to ^ 16 * i) + at, chunks[i][0], chunks[i][1], chunks[i][2], chunks[i][3]);
  }

  /// Whether a half's last slice becomes P of the even tile, for which the math does not ask whether a copy has been read: that slice goes
  /// to the other CTA from registers.
  template <int i>
  static constexpr bool kUnderP = buffer_of(i) == 0 && half_of(i) == 1 && Config::kSlices == kKeySlices;

  __device__ __forceinline__ void send_slice(int at, const std::uint32_t (&chunks)[2][4], std::uint32_t full) const {
    const int peer = cluster_rank() ^ 1;
#pragma unroll
    for (int i = 0; i < 2; ++i) store_async(remote_address((to ^ 16 * i) + at, peer), chunks[i], remote_address(full, peer));
  }

  /// What this warp has stored of a half, to the other CTA.
  template <int i>
  __device__ __forceinline__ void send(int at, std::uint32_t full) const {
    constexpr int kBytes = Rows::slices(half_of(i)) * kGroupBytes;
    fence_shared_for_async();
    __syncwarp();
    const std::uint32_t from = to + at;  // the first lane's chunk is the first of the group
    const int peer = cluster_rank() ^ 1;
    if (lane == 0) copy_to_peer(remote_address(from, peer), from, kBytes - (kUnderP<i> ? kGroupBytes : 0), remote_address(full, peer));
    threadIdx.x % Config::kLoadThreads == 0 ? barrier_arrive_expect(full, kGroups / 2 * kBytes) : barrier_arrive(full);
  }

  /// The i-th half of a pair's rows, once `zero` is known.
  template <int i>
  __device__ __forceinline__ void ask(const KeyList& list, int pair, const Pair& rows, std::uint32_t zero, HalfRow& half) const {
    const std::byte* data = data_of(list.cache_of(params, pair * kPair + buffer_of(i) * kKeyTile)) + zero;
    const Token& token = rows.own[buffer_of(i)];
    const std::byte* row = token.present() ? token_at(params, data, token.at) : nullptr;
    Rows::ask_codes(Rows::source_of(row, token.scales, half_of(i), lane % 4, zero), half_of(i), half);
  }

  /// A bit that all loads go into, and that params.zero clears: who needs it waits for them.
  template <int kHalf>
  __device__ __forceinline__ std::uint32_t wait_for(const HalfRow& half) const {
    std::uint32_t zero = params.zero;
#pragma unroll
    for (int slice = 0; slice < Rows::slices(kHalf); ++slice) zero &= half.codes[slice][0];
    return zero;
  }

  const Params& params;
  Storage<Config>& storage;
  int warp, lane;
  std::uint32_t to;    // where the lane's first chunk of its row goes, in slice 0 of the even tile; the other is beside it
  std::uint32_t flip;  // signs of e4m3 rows
};

}  // namespace fovea::gpu::sm90::latent
