// SPDX-License-Identifier: Apache-2.0
/// The kernel: each CTA computes the work tiles of one split of one kv head.
#pragma once

#include "gpu/cuda/common/target.cuh"
#include "gpu/cuda/portable/paged_attention/config.hpp"
#include "gpu/cuda/portable/paged_attention/epilogue.cuh"
#include "gpu/cuda/portable/paged_attention/reduce.cuh"

namespace fovea::gpu::portable::paged_attention {

/// Computes the key tiles of a work tile. A stage is refilled once all warps have read its tile, after the next tile's
/// barrier. Warps stay in step: memory is faster when loads of neighbouring rows are issued together. Loads and MMAs
/// have one call site each: instruction cache misses wait behind the copies of all CTAs. `find_next` finds the next
/// work tile.
template <class Config, class FindNext>
__device__ __forceinline__ void compute(const Params& params, Loader<Config>& load, Math<Config>& math, const WorkTile& work,
                                        const WorkTile& next, const FindNext& find_next) {
  constexpr int kStep = Config::kKeyTiles;
  const int ahead = (params.stages - 1) * kStep, first = work.first, last = work.last;
  load.begin(work);
  math.clear();
  int stage = 0;  // of `tile`
  int to = 0;     // of the tile that is loaded
#pragma unroll 1
  for (int tile = first - ahead; tile < last; tile += kStep) {
    if (tile >= first) {
      copy_async_wait(max(params.stages - 2, 0));
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
    load.prepare_scales(stage);
    math(tile, stage);
    if (++stage == params.stages) stage = 0;
  }
  copy_async_wait<0>();
}

template <class Config>
__device__ __forceinline__ void attend(const Params& params, Storage<Config>& storage, int kv_head, int split) {
  TileScheduler<Config::kRowTile> scheduler(params, split);
  const auto find = [&](int index) {  // one warp stores the work tile; the others read it after the next barrier
    if (threadIdx.x >= 32) return;
    const WorkTile found = scheduler.next();
    if (threadIdx.x == 0) storage.works[index % 2] = found;
  };
  find(0);
  const ScoreTransform<Warp> score = score_transform(params, kv_head);
  const float v_scale = params.v.scale == nullptr ? 1.0f : params.v.scale[kv_head * params.v.scale_stride];
  Loader<Config> load(params, storage, kv_head);
  Math<Config> math(params, storage, score);
  const ReduceSplits<Config> reduce(params, score, kv_head, split);
  __syncthreads();
#pragma unroll 1
  for (int index = 0; !storage.works[index % 2].is_none(); ++index) {
    const WorkTile& work = storage.works[index % 2];
    compute(params, load, math, work, storage.works[(index + 1) % 2], [&] { find(index + 1); });
    __syncthreads();  // results go where keys and values were
    math.store();
    __syncthreads();
    Epilogue<Config>(params, storage, work, score, kv_head)(v_scale);
    __syncthreads();
    reduce(work);
  }
}

/// With co_launched, the kernel before this one still runs, and has itself waited for all earlier ones. Their stores are
/// complete; the fence makes them visible. Nothing of the call is read before.
__device__ __forceinline__ void see_earlier_kernels(const Params& params) {
  if (params.co_launched) __threadfence();
}

/// Called at the end of a CTA. The CTAs of the first split end after the kernel before, so a wait for this kernel is a
/// wait for both. They start last; other CTAs do not wait, as that would keep their multiprocessors from later CTAs.
__device__ __forceinline__ void end_after_previous(const Params& params, int split) {
  if (params.co_launched && split == 0) grid_dependency_wait();
}

template <class Config>
__global__ void __launch_bounds__(kThreads, Config::kMostCtas) attend_pages(const __grid_constant__ Params params) {
  if constexpr (kHasMma<typename Config::Element>) {
    extern __shared__ __align__(128) std::byte shared[];
    // Last splits first: under a causal mask their query tiles see the most keys.
    const int kv_head = static_cast<int>(blockIdx.x) % params.kv_heads;
    const int split = params.splits - 1 - static_cast<int>(blockIdx.x) / params.kv_heads;
    see_earlier_kernels(params);
    attend(params, *reinterpret_cast<Storage<Config>*>(shared), kv_head, split);
    end_after_previous(params, split);
  }
}

template <class Config>
bool has_whole_rows(const Cache& cache) {
  return cache.aligned && cache.row_bytes == Config::kRowBytes;
}
/// Whether offsets of blocks and tokens are products of 32 bits times 32.
inline bool is_short(const detail::CacheStrides& strides) {
  return static_cast<std::uint64_t>(strides.block) < 1u << 31 && static_cast<std::uint64_t>(strides.token) < 1u << 27;
}
/// Whether one offset serves the scales of keys and those of values, which are whole words for Config::kKeyScales bytes.
template <class Config>
bool has_like_scales(const Cache& k, const Cache& v) {
  const auto whole = [](const Cache& cache) { return cache.scale_words && cache.scale_bytes == Config::kKeyScales; };
  const detail::CacheStrides &a = k.scale_strides, &b = v.scale_strides;
  return !Config::kScaledKeys || (whole(k) && whole(v) && is_short(a) && a.block == b.block && a.token == b.token);
}

template <class Config>
CudaStatus launch_attend(const Params& planned, int ordinal, Stream stream) {
  Params params = planned;
  params.whole_rows = has_whole_rows<Config>(params.k) && has_whole_rows<Config>(params.v);
  params.word_rows =
      params.k.in_words && params.v.in_words && params.k.row_bytes == Config::kRowBytes && params.v.row_bytes == Config::kRowBytes;
  params.in_one_page = params.whole_rows && params.page.divisor % kGroupKeys == 0 && is_short(params.k.strides) &&
                       is_short(params.v.strides) && has_like_scales<Config>(params.k, params.v);
  static_assert(sizeof(Storage<Config>) == kFixedBytes<Config>);
  // A plan with one CTA for each multiprocessor has the most stages.
  const DeviceProperties& device = *properties(ordinal);
  const int most = shape_of<Config>(device.shared_bytes_per_block, device.shared_bytes_per_multiprocessor, true).stages;
  const auto allowed = static_cast<std::size_t>(shared_bytes<Config>(most));
  if (const CudaStatus good = allow_shared_bytes<&attend_pages<Config>>(ordinal, allowed); !good) return good;
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(std::int64_t{params.splits} * params.kv_heads)),
                          .block = dim3(kThreads),
                          .shared_bytes = static_cast<std::size_t>(shared_bytes<Config>(params.stages)),
                          .programmatic = params.co_launched};
  return launch(&attend_pages<Config>, shape, stream, params);
}

}  // namespace fovea::gpu::portable::paged_attention
