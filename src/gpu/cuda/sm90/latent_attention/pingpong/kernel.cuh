// SPDX-License-Identifier: Apache-2.0
/// The roles of the pingpong kernel: two math warpgroups that score key tiles in turn, and the warps that load for them.
#pragma once

#include <type_traits>

#include "gpu/cuda/sm90/latent_attention/kernel.cuh"
#include "gpu/cuda/sm90/latent_attention/load_queries.cuh"
#include "gpu/cuda/sm90/latent_attention/partial.cuh"
#include "gpu/cuda/sm90/latent_attention/pingpong/load_gather.cuh"
#include "gpu/cuda/sm90/latent_attention/pingpong/load_quantised.cuh"
#include "gpu/cuda/sm90/latent_attention/pingpong/load_quantised_cluster.cuh"
#include "gpu/cuda/sm90/latent_attention/pingpong/load_tma.cuh"
#include "gpu/cuda/sm90/latent_attention/pingpong/math.cuh"

namespace fovea::gpu::sm90::latent {

template <class Config>
struct Loader {
  using Quantised = std::conditional_t<Config::kCluster == 1, QuantisedLoader<Config>, QuantisedClusterLoader<Config>>;
  using KeyLoader = std::conditional_t<Config::kLoad == Load::tma, TmaLoader<Config>,
                                       std::conditional_t<Config::kLoad == Load::gather, GatherLoader<Config>, Quantised>>;

  __device__ Loader(const Params& params_, Storage<Config>& storage_) : params(params_), storage(storage_), load_keys(params_, storage_) {}

  __device__ __forceinline__ void operator()() {
    bool first = true;
    for (WorkTile& work = keep(WorkTile::first_of(params, own_cta(params), Config::kLists)); !work.done();
         keep(work.next(params, own_cta(params), Config::kLists))) {
      load_keys(work.sequence, work.begin, work.end, first, [&] {
        publish(work);
        QueryLoader<Config>(params, storage, work.sequence)();
      });
      first = false;
      if (work.reduces) break;  // a CTA reduces in its last work tile
    }
    publish(WorkTile{});
    barrier_arrive(shared_address(&storage.q_full));
    // publish() has waited until all halves of the last pair were full, so `empty` can only complete for that pair.
    if (warp() == 0) {
      load_partials(params, storage, storage.loading[0], [&](int buffer) {
        for (int half = 0; half < 2; ++half) barrier_wait(shared_address(&storage.empty[buffer * 2 + half]), load_keys.parity ^ 1);
      });
    }
  }

 private:
  static __device__ int warp() { return thread_index() % Config::kLoadThreads / 32; }  // recomputed, which saves a register

  __device__ WorkTile& keep(const WorkTile& work) {
    __syncwarp();
    if (lane_index() == 0) {
      storage.loading[warp()] = work;
      storage.loading[warp()].place(params, own_cta(params), Config::kLists);
      if (Config::kLoad != Load::tma && !work.done()) storage.lists[warp()] = list_of<Config::kCluster>(params, work.sequence);
    }
    __syncwarp();
    return storage.loading[warp()];
  }

  /// Publishes the next work tile, once consumers have read the query rows of the last one.
  __device__ void publish(const WorkTile& work) {
    barrier_wait(shared_address(&storage.q_empty), q_parity ^ 1);
    if (warp() == 0 && lane_index() == 0) storage.work_tiles[q_parity] = work;
    q_parity ^= 1;
  }

  const Params& params;
  Storage<Config>& storage;
  KeyLoader load_keys;
  std::uint32_t q_parity = 0;
};

template <class Config>
struct Roles<Config, Kernel::pingpong> {
  static __device__ void init(Storage<Config>& storage) {
    storage.work_tiles[1].reduced = 0;  // there is no work tile before the first
    barriers_init(storage.full, Loader<Config>::KeyLoader::kArrivals);
    barriers_init(storage.empty, 4 * Config::kCluster);
    init_common<Config>(storage, Config::kLoadThreads, kMathThreads);
  }

  static __device__ __forceinline__ void run(const Params& params, Storage<Config>& storage, int warpgroup) {
    if (warpgroup < 2) {
      warpgroup_reg_alloc<Config::kMathRegisters>();
      Math<Config>(params, storage, warpgroup)();
    } else {
      warpgroup_reg_dealloc<Config::kLoadRegisters>();
      Loader<Config>(params, storage)();
    }
  }
};

}  // namespace fovea::gpu::sm90::latent
