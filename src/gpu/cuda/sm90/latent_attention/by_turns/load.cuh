// SPDX-License-Identifier: Apache-2.0
/// The load warps: keys as its key loader brings them, and before the first keys of a request its query rows.
#pragma once

#include <type_traits>

#include "gpu/cuda/sm90/latent_attention/by_turns/load_boxes.cuh"
#include "gpu/cuda/sm90/latent_attention/by_turns/load_codes.cuh"
#include "gpu/cuda/sm90/latent_attention/by_turns/load_codes_shared.cuh"
#include "gpu/cuda/sm90/latent_attention/by_turns/load_rows.cuh"
#include "gpu/cuda/sm90/latent_attention/collect.cuh"
#include "gpu/cuda/sm90/latent_attention/load_queries.cuh"

namespace fovea::gpu::sm90::latent {

template <class Config>
struct Loader {
  using CodesLoader = std::conditional_t<Config::kCluster == 1, CodeLoader<Config>, SharedCodeLoader<Config>>;
  using KeyLoader = std::conditional_t<Config::kLoad == Load::boxes, BoxLoader<Config>,
                                       std::conditional_t<Config::kLoad == Load::rows, RowLoader<Config>, CodesLoader>>;

  __device__ Loader(const Params& params_, Storage<Config>& storage_) : params(params_), storage(storage_), load_keys(params_, storage_) {}

  __device__ __forceinline__ void operator()() {
    bool first = true;
    for (Job& job = keep(Job::first_of(params, own_part(params), Config::kLists)); !job.done();
         keep(job.next(params, own_part(params), Config::kLists))) {
      load_keys(job.request, job.begin, job.end, first, [&] {
        announce(job);
        QueryLoader<Config>(params, storage, job.request)();
      });
      first = false;
      if (job.collects) break;  // who collects does so last
    }
    announce(Job{});
    barrier_arrive(shared_address(&storage.q_full));
    // announce() has seen all halves of the last pair full, so `empty` can only be of that pair.
    if (warp() == 0) {
      collect(params, storage, storage.loading[0], [&](int buffer) {
        for (int half = 0; half < 2; ++half) barrier_wait(shared_address(&storage.empty[buffer * 2 + half]), load_keys.parity ^ 1);
      });
    }
  }

 private:
  static __device__ int warp() { return thread_index() % Config::kLoadThreads / 32; }  // asked for anew: registers are dear here

  __device__ Job& keep(const Job& job) {
    __syncwarp();
    if (lane_index() == 0) {
      storage.loading[warp()] = job;
      storage.loading[warp()].place(params, own_part(params), Config::kLists);
      if (Config::kLoad != Load::boxes && !job.done()) storage.lists[warp()] = list_of<Config::kCluster>(params, job.request);
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

  const Params& params;
  Storage<Config>& storage;
  KeyLoader load_keys;
  std::uint32_t q_parity = 0;
};

}  // namespace fovea::gpu::sm90::latent
