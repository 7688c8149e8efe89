// SPDX-License-Identifier: Apache-2.0
/// Keys row by row, decoded from e4m3, for a cluster of two CTAs. Each CTA decodes every other group of eight rows of a tile and sends it
/// to the other CTA. A warp has one of these groups, a lane a quarter of a row. Two half rows are in flight at a time, and values are
/// decoded before their stage is free.
///
/// ptxas gives all these loads one scoreboard and moves arithmetic to the use of its results. Data dependencies therefore make the order:
/// `zero` is computed from results that must come first, and is added to addresses that must come later.
#pragma once

#include "gpu/cuda/sm90/cluster.cuh"
#include "gpu/cuda/sm90/latent_attention/decode.cuh"
#include "gpu/cuda/sm90/latent_attention/pingpong/load_gather.cuh"

namespace fovea::gpu::sm90::latent {

template <class Config>
class QuantisedClusterLoader : public RowFinder<Config, 16> {
 public:
  /// At a half's `full`: every thread arrives after it has stored its values. The other CTA's values are counted in bytes.
  static constexpr int kArrivals = Config::kLoadThreads;

  __device__ QuantisedClusterLoader(const Params& params_, Storage<Config>& storage_) : RowFinder<Config, 16>(params_, storage_) {
    asm("" : "+r"(warp), "+r"(lane));  // kept, because reading them again takes longer
    const int row = lane / 4, chunk = lane % 4 * 2;
    to = shared_address(storage.k[0]) + (warp * 2 + cluster_rank()) * kKeyGroup + row * 128 + (chunk ^ row) * 16;
    flip = flip_of(params);
  }

  /// Loads pairs [begin, end) of tiles. `before` is called ahead of their first keys.
  template <class Before>
  __device__ __forceinline__ void operator()(const Sequence&, int begin, int end, bool, Before&& before) {
    const KeyList list = storage.lists[warp];  // in registers, because shared memory answers late beside MMAs of scores
    const Entries first = look_up(list, begin, end);
    Entries entries = look_up(list, begin + 1, end);
    PairRows rows = locate_rows(list, begin, first);
    HalfRow a, b;  // even and odd halves
    issue_half<0>(list, begin, rows, 0, a);
    issue_half<1>(list, begin, rows, 0, b);  // the loop issues it again, because none may be in flight where it begins
    before();
    std::uint32_t zero = wait_for<half_of(0)>(a) + wait_for<half_of(1)>(b) + (params.zero & entries.own[0] & entries.own[1] & entries.any);
#pragma unroll 1
    for (int pair = begin; pair < end; ++pair) {
      issue_half<1>(list, pair, rows, zero, b);
      const PairRows next = locate_rows(list, pair + 1, entries);  // here it overlaps the wait for a free stage
      entries = look_up(list, pair + 2, end);
      zero = store_half<0>(rows.present, a, b);
      issue_half<2>(list, pair, rows, zero, a);
      zero = store_half<1>(0, b, a);
      issue_half<3>(list, pair, rows, zero, b);
      zero = store_half<2>(rows.present, a, b);
      rows = next;
      issue_half<0>(list, pair + 1, rows, zero, a);
      zero = store_half<3>(0, b, a);
      parity ^= 1;
    }
  }

  using Finder = RowFinder<Config, 16>;
  using Finder::parity;

 private:
  using Finder::lane, Finder::params, Finder::storage, Finder::warp;
  using Rows = CodeRows<Config, Config::kRow>;

  static_assert(Config::kCluster == 2 && Config::kRow == Row::e4m3);

  // ---- where the rows are -------------------------------------------------------------------------------------------------------

  /// List entries of this lane's rows of the even and the odd tile, and of own_key(), which lies in the groups of either CTA.
  struct Entries {
    int own[2], any;
  };
  struct PairRows {
    Token own[2];
    std::uint32_t present;  // a bit for each row of the warp
  };

  __device__ int row_key(int pair, int buffer) const {
    return pair * kPair + buffer * kKeyTile + (warp * 2 + cluster_rank()) * 8 + lane / 4;
  }
  /// Keys from `end` on are absent.
  __device__ Entries look_up(const KeyList& list, int pair, int end) const {
    if (pair >= end) return {{-1, -1}, -1};
    return {{latent::look_up(params, list, row_key(pair, 0)), latent::look_up(params, list, row_key(pair, 1))},
            latent::look_up(params, list, this->own_key(pair))};
  }
  __device__ PairRows locate_rows(const KeyList& list, int pair, const Entries& entries) const {
    const int even = pair * kPair, odd = even + kKeyTile;
    return {{latent::locate(params, list.cache_of(params, even), row_key(pair, 0), entries.own[0]),
             latent::locate(params, list.cache_of(params, odd), row_key(pair, 1), entries.own[1])},
            __ballot_sync(~0u, is_token(params, list.cache_of(params, lane < 16 ? even : odd), entries.any))};
  }

  // ---- a half -------------------------------------------------------------------------------------------------------------------

  /// Stores the i-th half of a pair, `a`, whose loads are complete. Then waits for the next half, `b`, before more loads are issued,
  /// because a wait for one load is a wait for all in flight.
  template <int i>
  __device__ __forceinline__ std::uint32_t store_half(std::uint32_t present, const HalfRow& a, const HalfRow& b) {
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

  /// Whether a half's last slice becomes P of the even tile. Consumers do not wait for bulk copies out of that slice, so registers are sent
  /// to the other CTA instead.
  template <int i>
  static constexpr bool kUnderP = buffer_of(i) == 0 && half_of(i) == 1 && Config::kSlices == kKeySlices;

  __device__ __forceinline__ void send_slice(int at, const std::uint32_t (&chunks)[2][4], std::uint32_t full) const {
    const int peer = cluster_rank() ^ 1;
#pragma unroll
    for (int i = 0; i < 2; ++i) store_async(remote_address((to ^ 16 * i) + at, peer), chunks[i], remote_address(full, peer));
  }

  /// Sends this warp's rows of a half to the other CTA.
  template <int i>
  __device__ __forceinline__ void send(int at, std::uint32_t full) const {
    constexpr int kBytes = Rows::slices(half_of(i)) * kGroupBytes;
    fence_shared_for_async();
    __syncwarp();
    const std::uint32_t from = to + at;  // the first lane's chunk is the first of the group
    const int peer = cluster_rank() ^ 1;
    if (lane == 0) copy_to_peer(remote_address(from, peer), from, kBytes - (kUnderP<i> ? kGroupBytes : 0), remote_address(full, peer));
    threadIdx.x % Config::kLoadThreads == 0 ? barrier_arrive_expect_tx(full, kGroups / 2 * kBytes) : barrier_arrive(full);
  }

  /// Issues the loads of the i-th half of a pair's rows; their addresses depend on `zero`.
  template <int i>
  __device__ __forceinline__ void issue_half(const KeyList& list, int pair, const PairRows& rows, std::uint32_t zero, HalfRow& half) const {
    const std::byte* data = data_of(list.cache_of(params, pair * kPair + buffer_of(i) * kKeyTile)) + zero;
    const Token& token = rows.own[buffer_of(i)];
    const std::byte* row = token.present() ? token_at(params, data, token.at) : nullptr;
    Rows::load_codes(Rows::source_of(row, token.scales, half_of(i), lane % 4, zero), half_of(i), half);
  }

  /// A word made of all loads and cleared by params.zero, so that its use waits for them.
  template <int kHalf>
  __device__ __forceinline__ std::uint32_t wait_for(const HalfRow& half) const {
    std::uint32_t zero = params.zero;
#pragma unroll
    for (int slice = 0; slice < Rows::slices(kHalf); ++slice) zero &= half.codes[slice][0];
    return zero;
  }

  std::uint32_t to;    // address of the lane's first chunk of its row, in slice 0 of the even tile; the other chunk is beside it
  std::uint32_t flip;  // signs of e4m3 rows
};

}  // namespace fovea::gpu::sm90::latent
