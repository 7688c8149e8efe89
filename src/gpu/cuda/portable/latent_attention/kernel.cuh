// SPDX-License-Identifier: Apache-2.0
/// The kernel: each CTA computes the work tiles of one split of one kv head.
#pragma once

#include <algorithm>
#include <type_traits>

#include "gpu/cuda/common/target.cuh"
#include "gpu/cuda/portable/latent_attention/block_math.cuh"
#include "gpu/cuda/portable/latent_attention/decode.cuh"
#include "gpu/cuda/portable/latent_attention/load.cuh"
#include "gpu/cuda/portable/latent_attention/math.cuh"

namespace fovea::gpu::portable::latent_attention {

/// Clears values that are not finite, of keys that not all rows of the query tile see: a probability of 0 does not hide them. Rows that see
/// such a key are NaN all the same, as its score is not finite either. Called by the CTA, between barriers.
template <class Config>
__device__ __noinline__ void clear_not_finite(const Params& params, const WorkTile& work, std::uint32_t keys, int first_key) {
  constexpr std::uint32_t kExponent = std::is_same_v<typename Config::Element, __half> ? 0x7c00 : 0x7f80;
  const int first = params.group.quotient(work.row), last = params.group.quotient(work.row + work.rows - 1);
  const auto kept = [](std::uint32_t half) { return (half & kExponent) == kExponent ? 0u : 0xffffu; };
#pragma unroll 1
  for (int row = static_cast<int>(threadIdx.x) / 8; row < Config::kKeys; row += kThreads / 8) {
    const int key = first_key + row;
    if (key >= last + work.low && key <= first + work.high) continue;
#pragma unroll 1
    for (int span = 0; span < kValueDim / 64; ++span) {
      const std::uint32_t at =
          keys + static_cast<std::uint32_t>(KeyRows<Config>::offset(row, static_cast<int>(threadIdx.x) % 8)) + 128 * span;
      uint4 x = load_shared_128(at);
      for (std::uint32_t* word : {&x.x, &x.y, &x.z, &x.w}) *word &= kept(*word) | kept(*word >> 16) << 16;
      store_shared_128(at, x);
    }
  }
}

template <class Config>
using MathOf = std::conditional_t<Config::kBlocks, BlockMath<Config>, Math<Config>>;

/// Computes the key tiles of a work tile. A stage is refilled once all warps have read its tile, after the next tile's barrier, and the one
/// stage of codes of blocks once it is decoded. `find_next` finds the next work tile.
template <class Config, class FindNext>
__device__ __forceinline__ void compute(const Params& params, Storage<Config>& storage, Loader<Config>& load, MathOf<Config>& math,
                                        const WorkTile& work, const FindNext& find_next) {
  constexpr int kKeys = Config::kKeys, kTilesOfWork = paged_attention::kTileKeys / kKeys;
  const int stages = Config::kBlocks ? 2 : params.stages, ahead = stages - 1, first = work.begin / kKeys,
            last = max((work.end + kKeys - 1) / kKeys, first + 1);
  load.begin(work, first);
  if constexpr (Config::kBlocks) math.copy_queries(work);
  constexpr bool kFills = Config::kBlocks && !Config::kCoded;  // all stages before the first tile
  int stage = 0;                                               // of `tile`
  int to = 0;                                                  // of the tile that is loaded
#pragma unroll 1
  for (int tile = first - ahead - kFills; tile < last; ++tile) {
    if (tile >= first) {
      copy_async_wait(kFills && tile == first ? ahead : max(ahead - 1, 0));
      __syncthreads();  // this tile has arrived, and the tile before has been read
      if constexpr (Config::kCoded) {
        decode_tile(params, storage, stage);
        __syncthreads();
      }
    }
    if (!kFills || tile != first) {
      const int next = tile + ahead + (kFills && tile < first);
      if (next < last) load(next, to);
      if (++to == stages) to = 0;
      copy_async_commit();
    }
    if (tile < first) {
      if constexpr (Config::kCoded) load.prefetch(first + 1);
      continue;
    }
    if (tile == first) {
      math.begin(work);
      find_next();
    }
    if (ahead == 0) {
      copy_async_wait<0>();
      __syncthreads();
    }
    if constexpr (!Config::kBlocks) {
      if (params.coded_row > 0) {
        decode_tile(params, storage, stage);
        __syncthreads();
      }
    }
    const int buffer = is_coded<Config>(params) ? 0 : stage;
    const bool masked = tile < work.full_first * kTilesOfWork || tile >= work.full_last * kTilesOfWork;
    math.multiply_keys(buffer);
    if (masked && work.uneven) {
      __syncthreads();
      clear_not_finite<Config>(params, work, storage.keys(buffer), tile * kKeys);
      __syncthreads();
    } else {
      math.await_products();
    }
    math.accumulate(tile, stage, masked, buffer);
    if (++stage == stages) stage = 0;
  }
  copy_async_wait<0>();
}

template <class Config>
__device__ __forceinline__ void attend(const Params& params, Storage<Config>& storage, int kv_head, int split) {
  paged_attention::TileScheduler<Config::kRowTile, Params> scheduler(params, split);
  const auto find = [&](int index) {  // one warp stores the work tile; the others read it after the next barrier
    if (threadIdx.x >= 32) return;
    const WorkTile found = scheduler.next();
    if (threadIdx.x == 0) storage.works[index % 2] = found;
  };
  find(0);
  Loader<Config> load(params, storage, kv_head);
  MathOf<Config> math(params, storage, kv_head);
  const auto unfinished = [&] { return params.unfinished + split * params.kv_heads + kv_head; };
  if (threadIdx.x == 0 && params.unfinished != nullptr) unfinished()->rows = 0;
  __syncthreads();
#pragma unroll 1
  for (int index = 0; !storage.works[index % 2].is_none(); ++index) {
    const WorkTile& work = storage.works[index % 2];
    compute(params, storage, load, math, work, [&] { find(index + 1); });
    math.store(work);
    if (threadIdx.x == 0 && params.unfinished != nullptr && work.last_split >= 0) *unfinished() = work;
    __syncthreads();  // the next work tile is found, and the keys have been read
  }
}

/// Blocks do not fit the 64 KB of 7.5.
template <class Config>
inline constexpr bool kRuns = kHasMma<typename Config::Element> && (kTarget != 75 || !Config::kBlocks);

template <class Config>
__global__ void __launch_bounds__(kThreads, Config::kMostCtas) attend_latent(const __grid_constant__ Params params) {
  if constexpr (kRuns<Config>) {
    extern __shared__ __align__(128) std::byte shared[];
    // Last splits first: under a causal mask their query tiles see the most keys.
    const int kv_head = static_cast<int>(blockIdx.x) % params.kv_heads;
    const int split = params.splits - 1 - static_cast<int>(blockIdx.x) / params.kv_heads;
    attend(params, *reinterpret_cast<Storage<Config>*>(shared), kv_head, split);
  }
}

template <class Config>
CudaStatus launch_attend(const Params& params, int ordinal, Stream stream) {
  static_assert(sizeof(Storage<Config>) == kFixedBytes<Config>);
  static_assert(Config::kBlocks ? shape_of<Config>(227 * 1024, 228 * 1024, Config::kCoded ? kPackedRow : 0).stages == Config::kStages
                                : shape_of<Config>(99 * 1024, 100 * 1024, 0).stages >= 2 &&
                                      shape_of<Config>(99 * 1024, 100 * 1024, kMixedRow).stages >= 1);
  const DeviceProperties& device = *properties(ordinal);
  int allowed = 0;
  for (const int coded_row : {0, kE4m3Row, kPackedRow, kMixedRow}) {
    const Shape most = shape_of<Config>(device.shared_bytes_per_block, device.shared_bytes_per_multiprocessor, coded_row);
    allowed = std::max(allowed, shared_bytes<Config>(most.stages, coded_row));
  }
  if (const CudaStatus good = allow_shared_bytes<&attend_latent<Config>>(ordinal, static_cast<std::size_t>(allowed)); !good) return good;
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(std::int64_t{params.splits} * params.kv_heads)),
                          .block = dim3(kThreads),
                          .shared_bytes = static_cast<std::size_t>(shared_bytes<Config>(params.stages, params.coded_row))};
  return launch(&attend_latent<Config>, shape, stream, params);
}

}  // namespace fovea::gpu::portable::latent_attention
