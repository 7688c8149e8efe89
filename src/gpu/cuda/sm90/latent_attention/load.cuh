// SPDX-License-Identifier: Apache-2.0
/// The load warps: keys as one of the three key loaders brings them, and before the first keys of a request its query rows.
#pragma once

#include <type_traits>

#include "gpu/cuda/sm90/latent_attention/load_boxes.cuh"
#include "gpu/cuda/sm90/latent_attention/load_codes.cuh"
#include "gpu/cuda/sm90/latent_attention/load_codes_shared.cuh"
#include "gpu/cuda/sm90/latent_attention/load_rows.cuh"

namespace fovea::gpu::sm90::latent {

template <class Config>
struct Loader {
  using Element = typename Config::Element;
  using KeyLoader =
      std::conditional_t<Config::kLoad == Load::boxes, BoxLoader<Config>,
                         std::conditional_t<Config::kLoad == Load::rows, RowLoader<Config>,
                                            std::conditional_t<Config::kCluster == 1, CodeLoader<Config>, SharedCodeLoader<Config>>>>;

  __device__ Loader(const Params& params_, Storage<Config>& storage_) : params(params_), storage(storage_), load_keys(params_, storage_) {}

  __device__ __forceinline__ void operator()() {
    bool first = true;
    for (Job& job = next(Job{}); !job.done(); next(job)) {
      load_keys(job.request, job.begin, job.end, first, [&] {
        announce(job);
        load_queries(job.request);
      });
      first = false;
      if (job.collect_end > 0) break;  // who collects does so last
    }
    announce(Job{});
    barrier_arrive(shared_address(&storage.q_full));
    if (warp() == 0) collect(storage.loading[0]);
  }

 private:
  static constexpr int kOutside = 1 << 30;  // a coordinate past every end

  static __device__ int warp() { return thread_index() % Config::kLoadThreads / 32; }  // asked for anew: registers are dear here

  __device__ Job& next(const Job& last) {
    const Job job = last.next(params, own_part(params));
    __syncwarp();
    if (lane_index() == 0) {
      storage.loading[warp()] = job;
      if (!job.done()) {
        storage.loading[warp()].place(params, own_part(params));
        if (Config::kLoad != Load::boxes) storage.lists[warp()] = list_of(params, job.request);
      }
    }
    __syncwarp();
    return storage.loading[warp()];
  }

  /// Once the math has used the query rows of the last job, it may be told the next.
  __device__ void announce(const Job& job) {
    barrier_wait(shared_address(&storage.q_empty), q_parity ^ 1);
    if (warp() == 0 && lane_index() == 0) storage.jobs[q_parity] = job;
    q_parity ^= 1;
  }

  /// What other parts have of the last job's request, when that is told and the math is done with the tiles. A lane for each math warp.
  /// After the last announce(): that has seen all halves of the last pair full, so `empty` can only be of that pair.
  __device__ void collect(const Job& job) {
    const int lane = lane_index();
    const bool wanted = lane < kMathWarps && has_rows(params, job.request, blockIdx.x, lane);
    const int first = own_part(params) + 1;
#pragma unroll 1
    for (int part = first; part < job.collect_end; ++part) {
      if (wanted) {
        int* flag = told(params, part) + lane;
        flag_await(flag);
        *flag = 0;
        fence_global_for_async();
      }
      __syncwarp();
      if (part > first) named_sync(kAdded, kMathThreads + 32);
      const PartialPlace place(params, detail::SplitSchedule::slot(part, true), blockIdx.y, blockIdx.x, lane);
#pragma unroll 1
      for (int buffer = 0; buffer < 2; ++buffer) {
        const std::uint32_t arrived = shared_address(&storage.collected[buffer]), to = shared_address(storage.k[buffer]);
        for (int half = 0; half < 2 && part == first; ++half)
          barrier_wait(shared_address(&storage.empty[buffer * 2 + half]), load_keys.parity ^ 1);
        const int lse_bytes = buffer == 0 && wanted ? Collected::kLseBytes : 0, bytes = wanted ? Collected::kBytes : 0;
        if (wanted) copy_bulk(to + lane * bytes, place.sums() + buffer * Collected::kChunks * 32, bytes, arrived);
        if (lse_bytes > 0) copy_bulk(to + Collected::kLseAt + lane * lse_bytes, place.lse(), lse_bytes, arrived);
        barrier_arrive_expect(arrived, bytes + lse_bytes);
      }
    }
    __syncwarp();
  }

  /// Rows of the tile: query token major, head minor. Rows past the end are zeros.
  __device__ void load_queries(const Request& request) { params.copy_queries ? copy_queries(request) : gather_queries(request); }

  /// Eight rows are eight heads of one token: one box.
  __device__ void copy_queries(const Request& request) {
    const std::uint32_t full = shared_address(&storage.q_full);
    if (threadIdx.x % Config::kLoadThreads == 0) {
      barrier_arrive_expect(full, kRowTile / 8 * Config::kQueryGroup);
    } else {
      barrier_arrive(full);
    }
    __syncwarp();
    const int lane = lane_index();
    if (warp() != 0 || lane >= kRowTile / kBoxRows) return;
    const int packed = blockIdx.x * kRowTile + lane * kBoxRows;
    const int token = packed / params.heads_per_kv, head = packed - token * params.heads_per_kv;
    const BoxStart at{.column = 0,
                      .row = static_cast<int>(blockIdx.y) * params.heads_per_kv + head,
                      .slice = 0,
                      .head = token < request.q_rows ? request.q_begin + token : kOutside,
                      .block = request.batch};
    copy_box(shared_address(storage.q) + lane * Config::kQueryGroup, &params.queries, at, full);
  }

  __device__ void gather_queries(const Request& request) {
    constexpr int kChunks = Config::kHeadDim / 8;  // of 16 bytes in a row
    const auto* q = static_cast<const Element*>(params.q);
    const std::uint32_t to = shared_address(storage.q);
    const int rows = request.q_rows * params.heads_per_kv;
    // Eight lanes take the eight chunks of a slice of one row: 128 contiguous bytes.
    const int lane = lane_index();
    for (int row = warp() * 4 + lane / 8; row < kRowTile; row += Config::kLoadThreads / 8) {
      const int packed = blockIdx.x * kRowTile + row;
      const bool valid = packed < rows;
      const int token = packed / params.heads_per_kv, head = packed - token * params.heads_per_kv;
      const Element* from = q;
      if (valid) {
        from += request.batch * params.q_batch + (request.q_begin + token) * params.q_row +
                (blockIdx.y * params.heads_per_kv + head) * params.q_head;
      }
      const std::uint32_t row_at = to + row / 8 * Config::kQueryGroup + row % 8 * 128 + ((lane % 8) ^ (row % 8)) * 16;
      for (int slice = 0; slice < kChunks / 8; ++slice) {
        copy_async(row_at + slice * kGroupBytes, from + (valid ? slice * kSlice + lane % 8 * 8 : 0), valid);
      }
    }
    copy_async_wait_all();
    fence_shared_for_async();
    barrier_arrive(shared_address(&storage.q_full));
  }

  const Params& params;
  Storage<Config>& storage;
  KeyLoader load_keys;
  std::uint32_t q_parity = 0;
};

}  // namespace fovea::gpu::sm90::latent
