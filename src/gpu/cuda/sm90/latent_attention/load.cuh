// SPDX-License-Identifier: Apache-2.0
/// The load warps: keys as its key loader brings them, and before the first keys of a request its query rows.
#pragma once

#include <type_traits>

#include "gpu/cuda/sm90/latent_attention/load_boxes.cuh"
#include "gpu/cuda/sm90/latent_attention/load_codes.cuh"
#include "gpu/cuda/sm90/latent_attention/load_codes_shared.cuh"
#include "gpu/cuda/sm90/latent_attention/load_rows.cuh"
#include "gpu/cuda/sm90/latent_attention/load_staged.cuh"

namespace fovea::gpu::sm90::latent {

template <class Config>
struct Loader {
  using Element = typename Config::Element;
  using CodesLoader = std::conditional_t<Config::kFourRoles, StagedLoader<Config>,
                                         std::conditional_t<Config::kCluster == 1, CodeLoader<Config>, SharedCodeLoader<Config>>>;
  using KeyLoader = std::conditional_t<Config::kLoad == Load::boxes, BoxLoader<Config>,
                                       std::conditional_t<Config::kLoad == Load::rows, RowLoader<Config>, CodesLoader>>;

  __device__ Loader(const Params& params_, Storage<Config>& storage_) : params(params_), storage(storage_), load_keys(params_, storage_) {}

  __device__ __forceinline__ void operator()() {
    if constexpr (Config::kFourRoles) {
      load_ahead();
    } else {
      load();
    }
  }

 private:
  static constexpr int kOutside = 1 << 30;  // a coordinate past every end

  __device__ __forceinline__ void load() {
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

  /// With four roles, the next job is looked for and told while one is computed.
  __device__ __forceinline__ void load_ahead() {
    Job& job = next(Job{});
    tell_job(job);
    while (!job.done()) {
      load_keys(job.request, job.begin, job.end, [&] {
        barrier_wait(shared_address(&storage.q_empty), q_parity ^ 1);
        q_parity ^= 1;
        load_queries(job.request);
        look_ahead(job);
        tell_job(storage.upcoming[warp()]);
      });
      if (storage.upcoming[warp()].done()) break;
      __syncwarp();
      if (lane_index() == 0) {
        job = storage.upcoming[warp()];
        storage.lists[warp()] = list_of(params, job.request);
      }
      __syncwarp();
    }
    if (warp() == 0) collect(job);
  }
  __device__ void look_ahead(const Job& job) {
    Job upcoming = job.collect_end > 0 ? Job{} : job.next(params, own_part(params));  // who collects does so last
    if (lane_index() == 0) {
      if (!upcoming.done()) upcoming.place(params, own_part(params));
      storage.upcoming[warp()] = upcoming;
    }
    __syncwarp();
  }
  __device__ void tell_job(const Job& job) {
    if (warp() == 0) {
      barrier_wait(shared_address(&storage.job_empty), job_parity ^ 1);
      if (lane_index() == 0) {
        storage.jobs[job_parity] = job;
        barrier_arrive(shared_address(&storage.job_full));
      }
      __syncwarp();
    }
    job_parity ^= 1;
  }

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
  /// After the last announce(): that has seen all halves of the last pair full, so `empty` can only be of that pair; with four roles
  /// await_empty() sees to it.
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
        if (part == first) await_empty(buffer);
        const int lse_bytes = buffer == 0 && wanted ? Collected::kLseBytes : 0, bytes = wanted ? Collected::kBytes : 0;
        if (wanted) copy_bulk(to + lane * bytes, place.sums() + buffer * Collected::kChunks * 32, bytes, arrived);
        if (lse_bytes > 0) copy_bulk(to + Collected::kLseAt + lane * lse_bytes, place.lse(), lse_bytes, arrived);
        barrier_arrive_expect(arrived, bytes + lse_bytes);
      }
    }
    __syncwarp();
  }

  __device__ void await_empty(int buffer) {
    if constexpr (Config::kFourRoles) {
      load_keys.await_empty(buffer);
    } else {
      for (int half = 0; half < 2; ++half) barrier_wait(shared_address(&storage.empty[buffer * 2 + half]), load_keys.parity ^ 1);
    }
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
      for (int slice = 0; slice < Config::kSharedSlices; ++slice) {
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
  std::uint32_t q_parity = 0, job_parity = 0;
};

}  // namespace fovea::gpu::sm90::latent
