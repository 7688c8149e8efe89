// SPDX-License-Identifier: Apache-2.0
/// The kernel: each CTA takes the work tiles of one part, of one kv head. What instances/ instantiate.
#pragma once

#include "gpu/cuda/portable/paged_attention/co_launch.cuh"
#include "gpu/cuda/portable/paged_attention/finish.cuh"
#include "gpu/cuda/portable/paged_attention/launch.hpp"
#include "gpu/cuda/portable/paged_attention/merge_parts.cuh"

namespace fovea::gpu::portable::paged_attention {

/// The key tiles of a work tile. A stage is loaded again once all warps have read the tile that it held, which the next tile's barrier
/// says. Warps stay side by side: memory is read faster when loads of neighbouring rows are issued at about the same time. Each thing
/// stands in one place, as instructions that are not at hand come from memory that is busy. `find_next` finds the next work tile.
template <class Config, class FindNext>
__device__ __forceinline__ void compute(const Params& params, Loader<Config>& load, Math<Config>& math, const WorkTile& work,
                                        const WorkTile& next, const FindNext& find_next) {
  const int ahead = params.stages - 1, first = work.first, last = work.last;
  load.begin(work);
  math.clear();
  int stage = 0, to = 0;  // of the tile, and of the one that is loaded
#pragma unroll 1
  for (int tile = first - ahead; tile < last; ++tile) {
    if (tile >= first) {
      copy_async_wait(max(ahead - 1, 0));
      __syncthreads();  // this tile has arrived, and the tile before has been read
    }
    if (tile + ahead < last) {
      load(tile + ahead, to);
    } else if (tile > first) {
      load.look_up(next);
    }
    if (++to == params.stages) to = 0;
    copy_async_commit();
    if (tile < first) continue;
    if (ahead == 0) {
      copy_async_wait<0>();
      __syncthreads();
    }
    if (tile == first) {
      if constexpr (Config::kQuantised) {
        load.convert_queries();
        __syncthreads();
      }
      math.begin(work);
      find_next();
    }
    math(tile, stage);
    if (++stage == params.stages) stage = 0;
  }
  copy_async_wait<0>();
}

template <class Config>
__device__ __forceinline__ void attend(const Params& params, Storage<Config>& storage, int kv_head, int part) {
  TileScheduler<Config::kRowTile> scheduler(params, part);
  const auto find = [&](int index) {  // by one warp; all know it at the next barrier
    if (threadIdx.x >= 32) return;
    const WorkTile found = scheduler.next();
    if (threadIdx.x == 0) storage.works[index % 2] = found;
  };
  find(0);
  const ScoreTransform<Warp> score = score_transform(params, kv_head);
  const float of_values = params.v.scale == nullptr ? 1.0f : params.v.scale[kv_head * params.v.scale_stride];
  Loader<Config> load(params, storage, kv_head);
  Math<Config> math(params, storage, score);
  const MergeParts<Config> merge(params, score, kv_head, part);
  __syncthreads();
#pragma unroll 1
  for (int index = 0; !storage.works[index % 2].is_none(); ++index) {
    const WorkTile& work = storage.works[index % 2];
    compute(params, load, math, work, storage.works[(index + 1) % 2], [&] { find(index + 1); });
    __syncthreads();  // results go where keys and values were
    math.store();
    __syncthreads();
    Finish<Config>(params, storage, work, score, kv_head)(of_values);
    __syncthreads();
    merge(work);
  }
}

template <class Config>
__global__ void __launch_bounds__(kThreads, Config::kMostCtas) attend_pages(const __grid_constant__ Params params) {
  if constexpr (kMultiplies<typename Config::Element>) {
    extern __shared__ __align__(128) std::byte shared[];
    // Last parts first: under a causal mask their query tiles see the most keys.
    const int kv_head = static_cast<int>(blockIdx.x) % params.kv_heads;
    const int part = params.parts - 1 - static_cast<int>(blockIdx.x) / params.kv_heads;
    see_earlier_kernels(params);
    attend(params, *reinterpret_cast<Storage<Config>*>(shared), kv_head, part);
    end_after_previous(params, part);
  }
}

template <class Config>
bool has_whole_rows(const Cache& cache) {
  return cache.aligned && cache.row_bytes == Config::kRowBytes;
}
/// Products of strides and numbers of blocks or tokens take 32 bits times 32.
inline bool has_short_strides(const Cache& cache) {
  return static_cast<std::uint64_t>(cache.strides.block) < 1u << 31 && static_cast<std::uint64_t>(cache.strides.token) < 1u << 27;
}

template <class Config>
Result<void> launch_attend(const Params& planned, int ordinal, Stream stream) {
  Params params = planned;
  params.whole_rows = has_whole_rows<Config>(params.k) && has_whole_rows<Config>(params.v);
  params.in_one_page =
      params.whole_rows && params.page.divisor % kWarpKeys == 0 && has_short_strides(params.k) && has_short_strides(params.v);
  static_assert(sizeof(Storage<Config>) == kFixedBytes<Config>);
  // Plans differ in their stages: one CTA of a multiprocessor has the most.
  const DeviceProperties& device = *properties(ordinal);
  const int most = shape_of<Config>(device.shared_bytes_per_block, device.shared_bytes_per_multiprocessor, true).stages;
  const auto allowed = static_cast<std::size_t>(shared_bytes<Config>(most));
  if (Result<void> good = allow_shared_bytes<&attend_pages<Config>>(ordinal, allowed); !good) return good;
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(std::int64_t{params.parts} * params.kv_heads)),
                          .block = dim3(kThreads),
                          .shared_bytes = static_cast<std::size_t>(shared_bytes<Config>(params.stages)),
                          .programmatic = params.co_launched};
  return launch(&attend_pages<Config>, shape, stream, params);
}

}  // namespace fovea::gpu::portable::paged_attention
