// SPDX-License-Identifier: Apache-2.0
/// The entry of both kernels and its launch. Each kernel's own folder defines its storage and its roles.
#pragma once

#include <type_traits>

#include "gpu/cuda/common/target.cuh"
#include "gpu/cuda/sm90/barrier.cuh"
#include "gpu/cuda/sm90/cluster.cuh"
#include "gpu/cuda/sm90/latent_attention/params.hpp"
#include "gpu/cuda/sm90/thread.cuh"
#include "gpu/cuda/sm90/tma.cuh"

namespace fovea::gpu::sm90::latent {

/// The roles of a kernel, defined in its folder. One thread calls init(storage), then all call run(params, storage, warpgroup).
template <class Config, Kernel = Config::kKernel>
struct Roles;

/// Initialises the barriers of both kernels, after all others. `fills` arrivals complete q_full, `reads` arrivals complete q_empty.
template <class Config>
__device__ void init_common(Storage<Config>& storage, int fills, int reads) {
  barriers_init(storage.partial_full, 32);
  barrier_init(shared_address(&storage.partial_empty), kMathThreads);
  barrier_init(shared_address(&storage.q_full), fills);
  barrier_init(shared_address(&storage.q_empty), reads);
  fence_barrier_init();
}

/// Grid (query tiles, kv heads, CTAs of the schedule), clusters along the query tiles.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) attend(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) std::byte shared[];
  auto& storage = *reinterpret_cast<Storage<Config>*>(shared);
  const int warpgroup = uniform(threadIdx.x / 128);
  if (threadIdx.x == 0) {
    Roles<Config>::init(storage);
    if (Config::kLoad == Load::tma) {
      prefetch_tensor_map(&params.left);
      prefetch_tensor_map(&params.right);
    }
    if (params.tma_queries) prefetch_tensor_map(&params.queries);
  }
  Config::kCluster > 1 ? cluster_sync() : __syncthreads();
  grid_dependency_wait();
  Roles<Config>::run(params, storage, warpgroup);
  launch_dependents();
  // The other CTA may still write to this CTA's shared memory. Checkers count barriers over the threads that have not ended.
  Config::kCluster > 1 ? cluster_sync() : __syncthreads();
}

template <class Config>
CudaStatus launch_attend(const Params& params, int ordinal, Stream stream) {
  static_assert(sizeof(Storage<Config>) <= 227 * 1024);
  if (const CudaStatus good = allow_shared_bytes<&attend<Config>>(ordinal, sizeof(Storage<Config>)); !good) return good;
  const LaunchShape shape{.grid = dim3(params.query_tiles, params.kv_heads, params.ctas),
                          .block = dim3(Config::kThreads),
                          .shared_bytes = sizeof(Storage<Config>),
                          .cluster = dim3(Config::kCluster),
                          .programmatic = true};
  return launch(&attend<Config>, shape, stream, params);
}

template <class Element, int kRow, int kHeadDim, bool kEdges>
Attend instance_of() {
  constexpr Tuning kTuning = kTunings[kRow];
  if constexpr (kTuning.has_instance(std::is_same_v<Element, __half> ? DType::f16 : DType::bf16, kHeadDim, kEdges)) {
    return &launch_attend<Config<Element, kHeadDim, kTuning.cluster, kTuning.load, kTuning.known_rows(), kEdges>>;
  } else {
    return nullptr;
  }
}

template <class Element, int kRow>
Attend attend_of(int head_dim, bool edges) {
  if (head_dim == 576) return edges ? instance_of<Element, kRow, 576, true>() : instance_of<Element, kRow, 576, false>();
  return edges ? instance_of<Element, kRow, 512, true>() : instance_of<Element, kRow, 512, false>();
}

}  // namespace fovea::gpu::sm90::latent
