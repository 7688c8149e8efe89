// SPDX-License-Identifier: Apache-2.0
/// The order in which listed key tiles add to dq. It is that of a schedule where every step takes the same time, so CTAs that keep to
/// it rarely wait for each other.
///
/// A key tile waits only for steps that the schedule has earlier. The schedule runs `ctas` key tiles at a time, in the order of tickets.
/// The earliest step that is left thus belongs to a CTA that runs, if the device runs that many at a time.
#pragma once

#include <climits>

#include "gpu/cuda/common/gradient/lists.cuh"
#include "gpu/cuda/common/gradient/lists.hpp"
#include "gpu/cuda/common/gradient/sequence.cuh"
#include "gpu/launch.hpp"

namespace fovea::gpu::gradient {

inline constexpr int kListThreads = 128, kOrderThreads = 256;
inline constexpr int kMostCtas = 160;         // of the schedule
inline constexpr int kStepsBetweenTiles = 4;  // what a CTA takes beside its steps

/// Orders the key tiles of a kv head, longest first, in a CTA for each.
template <class Params>
__global__ void __launch_bounds__(kOrderThreads) order_tiles(const __grid_constant__ Params params) {
  __shared__ int steps[kOrderThreads];
  const GradientLists& lists = params.lists;
  const int thread = static_cast<int>(threadIdx.x), batch = static_cast<int>(blockIdx.x) / params.kv_heads;
  const int kv_head = static_cast<int>(blockIdx.x) - batch * params.kv_heads;
  const auto steps_at = [&](int key_tile) { return key_tile < lists.key_tiles ? steps_of_key_tile(params, batch, kv_head, key_tile) : -1; };
  for (int first = 0; first < lists.key_tiles; first += kOrderThreads) {
    const int key_tile = first + thread, own = steps_at(key_tile);
    int before = 0;
    for (int begin = 0; begin < lists.key_tiles; begin += kOrderThreads) {
      __syncthreads();
      steps[thread] = steps_at(begin + thread);
      __syncthreads();
      for (int i = 0; i < min(kOrderThreads, lists.key_tiles - begin); ++i)
        before += steps[i] > own || (steps[i] == own && begin + i < key_tile) ? 1 : 0;
    }
    if (own >= 0) lists.order[std::int64_t{blockIdx.x} * lists.key_tiles + before] = static_cast<std::uint16_t>(key_tile);
  }
}

/// When CTAs leave the places that they can have at a time, by a warp. A lane has every 32nd place.
class Places {
 public:
  __device__ explicit Places(int ctas) {
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const unsigned place = i * 32 + threadIdx.x % 32;
      free[i] = place < static_cast<unsigned>(ctas) ? place : UINT_MAX;
    }
  }
  /// Gives the earliest place to a CTA of `steps` steps. Returns when it begins.
  __device__ unsigned take(unsigned steps) {
    const unsigned place = earliest(), until = place + (steps << kPlaceBits);
#pragma unroll
    for (unsigned& of : free) of = of == place ? until : of;
    return place >> kPlaceBits;
  }
  /// Counts time from the earliest place on. Returns by how much less that is.
  __device__ unsigned rebase() {
    const unsigned passed = earliest() >> kPlaceBits;
#pragma unroll
    for (unsigned& of : free) of = of == UINT_MAX ? of : of - (passed << kPlaceBits);
    return passed;
  }

 private:
  static constexpr int kOfLane = kMostCtas / 32, kPlaceBits = 8;
  static_assert(kMostCtas <= 1 << kPlaceBits && 2 * (kMostListedSteps + kStepsBetweenTiles) < std::int64_t{1} << (32 - kPlaceBits));

  __device__ unsigned earliest() const {
    unsigned least = free[0];
#pragma unroll
    for (int i = 1; i < kOfLane; ++i) least = min(least, free[i]);
    unsigned of_warp;  // from compute capability 8.0 on
    asm volatile("redux.sync.min.u32 %0, %1, 0xffffffff;" : "=r"(of_warp) : "r"(least));
    return of_warp;
  }

  unsigned free[kOfLane];  // a time, and in the low bits the number of the place
};

/// Sets `begins` for all key tiles, by kThreads threads of a CTA. The first warp goes from one ticket to the next; beside it the others
/// read the steps of later tickets, and write results of earlier ones.
template <int kThreads, class Params>
class TileSchedule {
 public:
  static constexpr int kChunk = kThreads - 32;  // tickets at a time
  struct Storage {
    unsigned steps[2][kChunk];
    std::int64_t begins[2][kChunk];
  };

  __device__ TileSchedule(const Params& params_, Storage& storage_)
      : params(params_), storage(storage_), count(params_.key_tiles * params_.kv_heads) {}

  __device__ void operator()() {
    const int chunks = (count + kChunk - 1) / kChunk, helper = static_cast<int>(threadIdx.x) - 32;
    Places places(min(params.lists.ctas, kMostCtas));
    std::int64_t base = 0, *of_last = nullptr, *of_this = nullptr;
    for (int chunk = -1; chunk <= chunks; ++chunk) {
      if (helper < 0) {
        if (chunk >= 0 && chunk < chunks) begin_all(places, base, chunk % 2);
      } else {
        if (of_last != nullptr) *of_last = storage.begins[(chunk + 1) % 2][helper];
        of_last = of_this;
        of_this = read((chunk + 1) * kChunk + helper, storage.steps[(chunk + 1) % 2][helper]);
      }
      __syncthreads();
    }
  }

 private:
  /// Where a ticket's result goes, or null. Sets how many steps it takes.
  __device__ std::int64_t* read(int ticket, unsigned& steps) const {
    steps = kStepsBetweenTiles;
    if (ticket >= count) return nullptr;
    const KeyTile tile = tile_at_ticket(params, params.lists.key_rows, ticket);
    if (tile.none) return nullptr;
    steps += steps_of_key_tile(params, tile.sequence.batch, tile.kv_head, tile.index);
    return params.lists.begins + (std::int64_t{tile.sequence.batch} * params.kv_heads + tile.kv_head) * params.lists.key_tiles + tile.index;
  }
  /// The tickets of a chunk, by a warp.
  __device__ void begin_all(Places& places, std::int64_t& base, int stage) const {
    const int lane = static_cast<int>(threadIdx.x);
    for (int first = 0; first < kChunk; first += 32) {
      base += places.rebase();
      unsigned begin = 0;
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const unsigned of_ticket = places.take(storage.steps[stage][first + i]);
        if (lane == i) begin = of_ticket;
      }
      storage.begins[stage][first + lane] = base + begin;
    }
  }

  const Params& params;
  Storage& storage;
  const int count;
};

/// The steps of one query block and head at the key tiles that it lists.
class StepWriter {
 public:
  __device__ StepWriter(const GradientLists& lists_, int batch_, int head_, int q_block_)
      : lists(lists_), batch(batch_), head(head_), q_block(q_block_), row(lists_.list(batch_, head_) * lists_.q_blocks + q_block_) {}

  __device__ void operator()(int key_tile, int place) const {
    ListedStep step{.place = static_cast<std::uint16_t>(place), .slots = {slot_of(key_tile, 0), slot_of(key_tile, 1)}};
    const int tiles_of_block = lists.of.block_q / lists.query_rows, first = q_block * tiles_of_block;
    ListedStep* const to = lists.steps_of(batch, head, key_tile) + lists.places[row * lists.key_tiles + key_tile];
    for (int i = 0; i < min(tiles_of_block, lists.query_tiles - first); ++i) {
      step.query_tile = static_cast<std::uint16_t>(first + i);
      to[i] = step;
    }
  }
  /// How the block lists a unit of a key tile.
  __device__ std::uint16_t slot_of(int key_tile, int unit) const {
    const int key = key_tile * lists.key_rows + unit * kUnitKeys, block = key / lists.of.block_k;
    const bool present = unit * kUnitKeys < lists.key_rows && block < lists.of.key_blocks;
    return present ? lists.slots[row * lists.of.key_blocks + block] : kNotListed;
  }

 private:
  const GradientLists& lists;
  const int batch, head, q_block;
  const std::int64_t row;
};

/// The same in the order of the schedule, by all threads of a CTA.
template <class Params>
class WriteSteps {
 public:
  static constexpr int kWindow = 1024;

  __device__ WriteSteps(const Params& params_, int batch_, int head_, int q_block)
      : params(params_), lists(params_.lists), batch(batch_), head(head_), write(params_.lists, batch_, head_, q_block) {
    row = lists.list(batch, head) * lists.q_blocks + q_block;
    count = lists.listed_count(row);
  }

  __device__ void operator()(std::int64_t (&times)[kWindow]) const {
    for (int first = 0; first < lists.key_tiles; first += kListThreads) {
      const int key_tile = first + static_cast<int>(threadIdx.x);
      const bool listed = key_tile < lists.key_tiles && lists.is_listed(row, key_tile);
      const int place = listed ? lists.listed_before(row, key_tile) : 0;
      const std::int64_t time = listed ? time_of(key_tile) : 0;
      int rank = 0;
      for (int begin = 0; begin < count; begin += kWindow) {
        if (first == 0 || count > kWindow) read(times, begin);
        if (!listed) continue;
        for (int i = 0; i < min(kWindow, count - begin); ++i) rank += times[i] < time || (times[i] == time && begin + i < place) ? 1 : 0;
      }
      if (listed) write(key_tile, 2 * rank + (rank + 1 == count ? 1 : 0));
    }
  }

 private:
  /// When the schedule has a key tile at the block.
  __device__ std::int64_t time_of(int key_tile) const {
    const int kv_head = head / params.heads_per_kv, first_head = kv_head * params.heads_per_kv;
    return lists.begins[(std::int64_t{batch} * params.kv_heads + kv_head) * lists.key_tiles + key_tile] +
           ListedTileScheduler::count(lists, batch, first_head, head - first_head, key_tile) +
           lists.places[row * lists.key_tiles + key_tile];
  }
  /// The times of the listed key tiles from number `begin` on.
  __device__ void read(std::int64_t (&times)[kWindow], int begin) const {
    __syncthreads();
    for (int key_tile = static_cast<int>(threadIdx.x); key_tile < lists.key_tiles; key_tile += kListThreads) {
      if (!lists.is_listed(row, key_tile)) continue;
      const int place = lists.listed_before(row, key_tile) - begin;
      if (place >= 0 && place < kWindow) times[place] = time_of(key_tile);
    }
    __syncthreads();
  }

  const Params& params;
  const GradientLists& lists;
  const int batch, head;
  const StepWriter write;
  std::int64_t row;
  int count;
};

/// A CTA for each query block and head.
template <class Params>
__global__ void __launch_bounds__(kListThreads) write_steps(const __grid_constant__ Params params) {
  __shared__ std::int64_t times[WriteSteps<Params>::kWindow];
  const int batch = static_cast<int>(blockIdx.y) / params.heads;
  WriteSteps<Params>(params, batch, static_cast<int>(blockIdx.y) - batch * params.heads, static_cast<int>(blockIdx.x))(times);
}

}  // namespace fovea::gpu::gradient
