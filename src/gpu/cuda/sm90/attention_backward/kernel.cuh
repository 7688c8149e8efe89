// SPDX-License-Identifier: Apache-2.0
/// The kernel of all gradients: barriers and roles.
#pragma once

#include "gpu/cuda/common/target.cuh"
#include "gpu/cuda/sm90/attention_backward/config.hpp"
#include "gpu/cuda/sm90/attention_backward/dq.cuh"
#include "gpu/cuda/sm90/attention_backward/load.cuh"
#include "gpu/cuda/sm90/attention_backward/scores.cuh"
#include "gpu/cuda/sm90/attention_backward/separate_dq/kernel.cuh"
#include "gpu/cuda/sm90/thread.cuh"

namespace fovea::gpu::sm90::attention_backward {

/// Where a CTA keeps its ticket. With ALiBi, dynamic shared memory leaves no room for any other.
template <class Config>
__device__ __forceinline__ int& ticket_place(Storage<Config>& storage) {
  if constexpr (dense::kAlibi<Config>) {
    return storage.alibi.ticket;
  } else {
    __shared__ int ticket;
    return ticket;
  }
}

/// A CTA for each key tile. Tickets order CTAs: one may wait for those that began before it, and for its
/// group of those after it.
template <class Config>
__device__ __forceinline__ void differentiate_keys_at_ticket(const typename Config::Params& params) {
  extern __shared__ __align__(1024) std::byte shared[];
  auto& storage = *reinterpret_cast<Storage<Config>*>(shared);
  int& ticket_of_cta = ticket_place(storage);
  constexpr int kScoreWarps = 4 * Config::kScoreWarpgroups, kDqWarps = Config::kDqInScoreWarpgroups ? kScoreWarps : 4;
  if (threadIdx.x == 0) {
    barrier_init(shared_address(&storage.kv_full), 1);
    barriers_init(storage.q_full, 1);
    barriers_init(storage.dout_full, 1);
    barriers_init(storage.empty, kScoreWarps);
    barriers_init(storage.ds_full, kScoreWarps);
    barriers_init(storage.ds_empty, kDqWarps);
    barriers_init(storage.sums_full, kDqWarps);
    barriers_init(storage.sums_empty, 1);
    fence_barrier_init();
    for (const ClippedRows* rows : {&params.q, &params.k, &params.v, &params.dout}) prefetch_tensor_map(&rows->map);
    grid_dependency_wait();
    ticket_of_cta = atomicAdd(params.ticket, 1);
    storage.tile = tile_at_ticket(params, Config::kKeyTile, ticket_of_cta);
    storage.step_count = step_count_of<Config>(params, storage.tile);
  }
  __syncthreads();
  grid_dependency_wait();
  fence_global_for_async();
  const int ticket = ticket_of_cta, warpgroup = uniform(threadIdx.x / 128);
  if (storage.tile.none) return;
  if (warpgroup < Config::kScoreWarpgroups) {
    warpgroup_reg_alloc<Config::kScoreRegisters>();
    Scores<Config>(params, storage, warpgroup)(ticket);
  } else if (Config::kDqWarpgroup && warpgroup == Config::kScoreWarpgroups) {
    warpgroup_reg_dealloc<Config::kQueryRegisters>();
    if constexpr (Config::kDqWarpgroup) DqWarpgroup<Config>(params, storage)();
  } else {
    warpgroup_reg_dealloc<Config::kLoadRegisters>();
    if (threadIdx.x % 32 != 0) return;
    const int warp = threadIdx.x % 128 / 32;
    if (warp == 0) {
      load_tiles(params, storage);
    } else if (warp <= Config::kSumsStages) {
      emit_dq(params, storage, warp - 1);
    }
  }
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) differentiate(const __grid_constant__ Params params) {
  differentiate_keys_at_ticket<Config>(params);
}

template <class Config, auto kKernel>
CudaStatus launch_combined(const typename Config::Params& params, int ordinal, Stream stream) {
  static_assert(sizeof(Storage<Config>) <= (dense::kAlibi<Config> ? 227 : 226) * 1024);
  if (const CudaStatus good = allow_shared_bytes<kKernel>(ordinal, sizeof(Storage<Config>)); !good) return good;
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(params.key_tiles) * static_cast<unsigned>(params.kv_heads)),
                          .block = dim3(Config::kThreads),
                          .shared_bytes = sizeof(Storage<Config>),
                          .programmatic = true};
  return launch(kKernel, shape, stream, params);
}

template <class Config>
CudaStatus launch_differentiate(const Params& params, int ordinal, Stream stream) {
  if constexpr (Config::kSeparateDq) {
    return launch_separate<Config>(params, ordinal, stream);
  } else {
    return launch_combined<Config, &differentiate<Config>>(params, ordinal, stream);
  }
}

}  // namespace fovea::gpu::sm90::attention_backward
