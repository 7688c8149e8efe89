// SPDX-License-Identifier: Apache-2.0
/// The kernel: each CTA takes the work tiles of one part and kv head. What instances/ instantiate.
#pragma once

#include "gpu/cuda/common/programmatic_launch.cuh"
#include "gpu/cuda/portable/paged_attention/beside.cuh"
#include "gpu/cuda/portable/paged_attention/finish.cuh"
#include "gpu/cuda/portable/paged_attention/launch.hpp"

namespace fovea::gpu::portable::paged_attention {

/// Keys that a warp alone reads are its own affair; others are all threads'. Short rows are read together all the same: rows of other keys
/// lie between them, and memory is read faster when the warps stay side by side.
template <class Config>
__device__ __forceinline__ void sync_ring() {
  if constexpr (Config::kGroups == kWarps && Config::kRowBytes >= kLongRow) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

/// One work tile. A stage is loaded again once the tile that it held has been read, which the next tile's synchronisation says. Loads of
/// queries are issued first: behind the keys and values of all CTAs they would arrive with the last of these.
template <class Config>
__device__ __forceinline__ void compute(const Params& params, Storage<Config>& storage, const Score& score, int kv_head) {
  Loader<Config> load(params, storage, kv_head);
  Math<Config> math(params, storage, score);
  const int first = storage.work.first, last = storage.work.last, ahead = params.stages - 1;
  load.begin();
  for (int i = 0; i < ahead; ++i) {
    if (first + i < last) load.load(first + i, i);
    copy_async_commit();
  }
  load.store_queries();
  __syncthreads();
  math.begin();
  int stage = 0;
  for (int tile = first; tile < last; ++tile) {
    copy_async_wait(ahead - 1);
    sync_ring<Config>();  // this tile has arrived, and the tile before has been read
    if (tile + ahead < last) load.load(tile + ahead, stage == 0 ? ahead : stage - 1);
    copy_async_commit();
    if (ahead == 0) {
      copy_async_wait<0>();
      sync_ring<Config>();
    }
    math(tile, stage);
    if (++stage == params.stages) stage = 0;
  }
  copy_async_wait<0>();
  __syncthreads();  // results go where keys and values were
  math.store();
  __syncthreads();
  Finish<Config>(params, storage, score, kv_head)();
}

template <class Config>
__global__ void __launch_bounds__(kThreads, 2) attend_pages(const __grid_constant__ Params params) {
  if constexpr (kMultiplies<typename Config::Element>) {
    let_next_kernel_start();  // it finds its place beside this one, and waits for its results
    extern __shared__ __align__(128) std::byte shared[];
    auto& storage = *reinterpret_cast<Storage<Config>*>(shared);
    // Last parts first: under a causal mask their query tiles see the most keys.
    const int kv_head = static_cast<int>(blockIdx.x) % params.kv_heads;
    const int part = params.parts - 1 - static_cast<int>(blockIdx.x) / params.kv_heads;
    see_earlier_kernels(params);
    const bool finds = threadIdx.x < 32;
    const Score score(params, kv_head);
    Walk<Config::kRowTile> walk(params, part);
    for (;;) {
      WorkTile work;
      const bool some = !finds || walk.next(work);
      if (finds && some && threadIdx.x == 0) storage.work = work;
      if (__syncthreads_and(some) == 0) break;
      compute(params, storage, score, kv_head);
      __syncthreads();
    }
    end_after_previous(params, part);
  }
}

template <class Config>
Result<void> launch_attend(const Params& params, int ordinal, Stream stream) {
  static_assert(sizeof(Storage<Config>) == kFixedBytes<Config>);
  const auto bytes = static_cast<std::size_t>(shared_bytes<Config>(params.stages));
  if (Result<void> good = allow_shared_bytes<&attend_pages<Config>>(ordinal, bytes); !good) return good;
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(params.parts * params.kv_heads)),
                          .block = dim3(kThreads),
                          .shared_bytes = bytes,
                          .programmatic = params.beside};
  return launch(&attend_pages<Config>, shape, stream, params);
}

}  // namespace fovea::gpu::portable::paged_attention
