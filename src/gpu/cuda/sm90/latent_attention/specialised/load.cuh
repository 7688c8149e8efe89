// SPDX-License-Identifier: Apache-2.0
/// The load warps of the specialised kernel. One warp plans the addresses of keys a few tiles ahead. Two warps copy keys as the cache
/// stores them. The fourth loads queries and, at the end, partial results of other CTAs.
#pragma once

#include "gpu/cuda/sm90/latent_attention/keys.cuh"
#include "gpu/cuda/sm90/latent_attention/load_queries.cuh"
#include "gpu/cuda/sm90/latent_attention/partial.cuh"
#include "gpu/cuda/sm90/latent_attention/specialised/storage.cuh"
#include "gpu/cuda/sm90/shared_memory.cuh"

namespace fovea::gpu::sm90::latent {

/// Publishes a work tile; by one warp.
template <class Config>
__device__ __forceinline__ void publish_work(Storage<Config>& storage, int slot, const WorkTile& work) {
  if (lane_index() != 0) return;
  storage.work_tiles[slot] = work;
  barrier_arrive(shared_address(&storage.work_full[slot]));
}

/// Publishes work tiles, and plans the addresses of their keys.
template <class Config>
struct Planner {
  const Params& params;
  Storage<Config>& storage;
  std::uint32_t work_index = 0, plans = 0;

  __device__ __forceinline__ void operator()() {
    bool single = false;
    for (WorkTile work = WorkTile::first_of(params, own_cta(params), Config::kLists); !work.done();
         work = work.next(params, own_cta(params), Config::kLists)) {
      plan(work);
      single = work.tiles() == 1;
      if (work.reduces) break;  // a CTA reduces in its last work tile
    }
    publish(WorkTile{});
    // Value warps begin a work tile with two decoded tiles. After a last work tile of one tile, a blank tile follows.
    if (single) post(params.main, {}, {});
    begin_plan();
    if (lane_index() == 0) slot().end = true;
    end_plan();
  }

 private:
  using Entries = int[2];  // of two keys of this lane
  using WorkTiles = typename Storage<Config>::WorkTiles;
  using Plans = typename Storage<Config>::Plans;

  /// The companion warp has published the first work tile, or the end.
  __device__ void publish(const WorkTile& work) {
    const int at = WorkTiles::stage_of(work_index);
    if (work_index > 0) {
      barrier_wait(shared_address(&storage.work_empty[at]), WorkTiles::parity_of(work_index) ^ 1);
      publish_work<Config>(storage, at, work);
    }
    ++work_index;
  }

  __device__ void plan(WorkTile& work) {
    __syncwarp();
    if (lane_index() == 0) storage.list = list_of<1>(params, work.sequence);
    __syncwarp();
    const KeyList& list = storage.list;
    const int first = work.begin * 2, last = first + work.tiles();
    Entries entries, next;
    look_up(list, first, entries);
    work.place(params, own_cta(params), Config::kLists);  // while these loads are in flight
    publish(work);
#pragma unroll 1
    for (int tile = first; tile < last; ++tile) {
      look_up(list, tile + 1, next);
      const RowCache& cache = list.cache_of(params, tile * kKeyTile);
      post(cache, place_of(cache, tile, 0, entries[0]), place_of(cache, tile, 1, entries[1]));
      entries[0] = next[0], entries[1] = next[1];
    }
  }

  static __device__ int own_key(int tile, int i) { return tile * kKeyTile + i * 32 + lane_index(); }
  __device__ void look_up(const KeyList& list, int tile, Entries& entries) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) entries[i] = latent::look_up(params, list, own_key(tile, i));
  }
  __device__ Token place_of(const RowCache& cache, int tile, int i, int entries) const {
    return locate(params, cache, own_key(tile, i), entries);
  }

  static __device__ bool holds_fp4(const RowCache& cache) { return Config::kTwoKinds && cache.row == Row::fp4; }
  __device__ void post(const RowCache& cache, const Token& first, const Token& second) {
    const int lane = lane_index();
    const std::byte* data = data_of(cache);
    const uint2 present{__ballot_sync(~0u, first.present()), __ballot_sync(~0u, second.present())};
    begin_plan();
    Plan& to = slot();
    to.at[Plan::order(lane)] = first.at;
    to.at[Plan::order(lane + 32)] = second.at;
    to.scales[lane] = first.scales;
    to.scales[lane + 32] = second.scales;
    if (lane == 0) {
      to.data = data;
      to.fp4 = holds_fp4(cache);
      to.end = false;
      to.present = present;
    }
    end_plan();
  }

  __device__ void begin_plan() { barrier_wait(shared_address(&storage.plan_empty[Plans::stage_of(plans)]), Plans::parity_of(plans) ^ 1); }
  __device__ Plan& slot() { return storage.plans[Plans::stage_of(plans)]; }
  __device__ void end_plan() {
    barrier_arrive(shared_address(&storage.plan_full[Plans::stage_of(plans)]));
    ++plans;
  }
};

/// Copies the codes of a tile; by each of kWarps warps. Eight lanes share a row: 128 contiguous bytes of four rows at a time.
template <class Config>
class StagedLoader {
 public:
  static constexpr int kWarps = 2;

  __device__ StagedLoader(const Params& params_, Storage<Config>& storage_, int warp)
      : params(params_), storage(storage_), lane(lane_index()), first_row(warp * kWarpRows + lane / 8) {
    asm("" : "+r"(lane), "+r"(first_row));  // kept, because reading them again takes longer
  }

  __device__ __forceinline__ void operator()() {
    for (std::uint32_t tile = 0;; ++tile) {
      const int slot = Plans::stage_of(tile);
      barrier_wait(shared_address(&storage.plan_full[slot]), Plans::parity_of(tile));
      const Plan& plan = storage.plans[slot];
      if (plan.end) return;
      load_side<0>(tile, plan);
      load_side<1>(tile, plan);
      barrier_arrive(shared_address(&storage.plan_empty[slot]));
    }
  }

 private:
  using Rows = StagedRow<Config::kRow>;
  using Plans = typename Storage<Config>::Plans;
  static constexpr int kStepRows = 4, kWarpRows = kKeyTile / kWarps, kSteps = kWarpRows / kStepRows;
  static_assert(kWarpRows == 32);

  /// The row whose scales this lane loads.
  __device__ int own_row() const { return first_row / kWarpRows * kWarpRows + lane; }

  /// Reads the plan again for each side, which saves registers, and before the side's stage is free.
  template <int kSide>
  __device__ __forceinline__ void load_side(std::uint32_t tile, const Plan& plan) {
    const std::byte* data = plan.data;
    const std::uint32_t own = plan.at[Plan::order(own_row())];
    const std::byte* scales = own != Token::kNone ? token_at(params, data, own) + plan.scales[own_row()] : nullptr;
    std::uint32_t at[kSteps];
    const uint4* from = reinterpret_cast<const uint4*>(&plan.at[Plan::order(first_row)]);
#pragma unroll
    for (int i = 0; i < kSteps / 4; ++i) {
      const uint4 four = from[i];
      at[4 * i] = four.x, at[4 * i + 1] = four.y, at[4 * i + 2] = four.z, at[4 * i + 3] = four.w;
    }
    barrier_wait(shared_address(&storage.staged_free[kSide]), (tile & 1) ^ 1);
    if (Config::kTwoKinds && own_row() == 0) storage.fp4[kSide] = plan.fp4;
    if (Config::kTwoKinds && plan.fp4) {
      load_fp4<kSide>(data, at, scales);
    } else {
      load_rows<kSide>(data, at);
      load_scales<kSide>(scales);
    }
    copy_async_arrive(shared_address(&storage.staged[kSide]));
    // The copies' arrival does not cover the thread's own stores; this one does.
    barrier_arrive(shared_address(&storage.staged[kSide]));
  }

  template <int kSide>
  __device__ __forceinline__ void load_rows(const std::byte* data, const std::uint32_t (&at)[kSteps]) const {
    const std::uint32_t to = shared_address(storage.staging) + Staged::chunk(first_row, 0, lane % 8);
    data += lane % 8 * 16;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const bool present = at[step] != Token::kNone;
      const std::byte* from = present ? token_at(params, data, at[step]) : data;
#pragma unroll
      for (int piece = 0; piece < Rows::kPieces; ++piece) {
        if (Staged::side_of(piece) != kSide) continue;
        if (Rows::chunks(piece) == 8 || lane % 8 < Rows::chunks(piece))
          copy_async(to + Staged::chunk(step * kStepRows, piece, 0), from + Rows::offset(piece), present);
      }
    }
  }

  /// Four lanes load each half of the columns. Scales are two chunks of 8 bytes.
  template <int kSide>
  __device__ __forceinline__ void load_fp4(const std::byte* data, const std::uint32_t (&at)[kSteps], const std::byte* scales) const {
    const std::uint32_t to = shared_address(storage.staging) + Staged::chunk(first_row, lane % 8 / 4 * 2 + kSide, lane % 4);
    const std::uint32_t scales_to = shared_address(&storage.scales[kSide][own_row()]);
    const int offset = lane % 8 / 4 * 128 + kSide * 64 + lane % 4 * 16;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const bool present = at[step] != Token::kNone;
      copy_async(to + Staged::chunk(step * kStepRows, 0, 0), (present ? token_at(params, data, at[step]) : data) + offset, present);
    }
    const bool present = scales != nullptr;
    const std::byte* from = (present ? scales : data) + kSide * 8;
    for (int half = 0; half < 2; ++half) copy_async_8(scales_to + half * 8, from + half * 16, present);
  }

  template <int kSide>
  __device__ __forceinline__ void load_scales(const std::byte* scales) const {
    const std::uint32_t to = shared_address(&storage.scales[kSide][own_row()]);
    const bool present = scales != nullptr;
    const std::byte* from = present ? scales : static_cast<const std::byte*>(params.q);
    if constexpr (Rows::kScaleBytes == 8) {
      copy_async_8(to, from, present);
    } else {
      copy_async(to, from, present);
    }
  }

  const Params& params;
  Storage<Config>& storage;
  int lane, first_row;
};

/// Loads queries, work tile by work tile, signals this CTA's partial result, and loads those of other CTAs.
template <class Config>
struct CompanionLoader {
  const Params& params;
  Storage<Config>& storage;

  __device__ __forceinline__ void operator()() {
    // The planner finds the first keys meanwhile.
    publish_work<Config>(storage, 0, WorkTile::first_of(params, own_cta(params), Config::kLists));
    bool wanted = false;  // whether another CTA reduces the first work tile, and the lane's math warp has valid rows
    for (std::uint32_t count = 0;; ++count) {
      const int slot = WorkTiles::stage_of(count);
      const WorkTile& work = storage.work_at(count);
      const bool done = work.done();
      if (count == 0) wanted = work.reduced && lane_index() < kMathWarps && has_rows(params, work.sequence, blockIdx.x, lane_index());
      if (!done) {
        const QueryLoader<Config, kWarp> load(params, storage, work.sequence);
        if (count > 0) load.prefetch();  // the first work tile finds its stage free
        barrier_wait(shared_address(&storage.q_empty), (count & 1) ^ 1);
        load();
        barrier_arrive(shared_address(&storage.work_empty[slot]));
      }
      if (count == 1) signal_first(wanted);
      if (!done) continue;
      if (count == 0) return;
      // Nothing is published after the last work tile, so its slot is intact.
      return load_partials(params, storage, storage.work_tiles[WorkTiles::stage_of(count - 1)],
                           [&](int) { barrier_wait(shared_address(&storage.tiles_done), 0); });
    }
  }

 private:
  using WorkTiles = typename Storage<Config>::WorkTiles;
  static constexpr int kWarp = Config::kLoadThreads / 32 - 1;

  /// Signals the first work tile's partial result, once all roles are done with it.
  __device__ void signal_first(bool wanted) {
    if (!__any_sync(~0u, wanted)) return;
    barrier_wait(shared_address(&storage.work_empty[0]), 0);
    flag_raise_if(wanted, ready_flags(params, own_cta(params)) + lane_index());
  }
};

/// The roles of the load warps: planner, copies of keys, companion.
template <class Config>
__device__ __forceinline__ void run_load_warp(const Params& params, Storage<Config>& storage) {
  constexpr int kKeyWarps = StagedLoader<Config>::kWarps;
  static_assert(Config::kLoadThreads / 32 == kKeyWarps + 2);
  const int warp = uniform(threadIdx.x % Config::kLoadThreads / 32);
  if (warp == 0) {
    Planner<Config>{params, storage}();
  } else if (warp <= kKeyWarps) {
    StagedLoader<Config>(params, storage, warp - 1)();
  } else {
    CompanionLoader<Config>{params, storage}();
  }
}

}  // namespace fovea::gpu::sm90::latent
