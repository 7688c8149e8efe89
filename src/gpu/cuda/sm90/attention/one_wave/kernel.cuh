// SPDX-License-Identifier: Apache-2.0
/// The kernel for calls of one wave: a cluster for each query tile, whose CTAs share its keys.
#pragma once

#include "gpu/cuda/common/target.cuh"
#include "gpu/cuda/sm90/attention/one_wave/load.cuh"
#include "gpu/cuda/sm90/attention/one_wave/merge_cluster.cuh"
#include "gpu/cuda/sm90/attention/one_wave/merge_warpgroups.cuh"
#include "gpu/cuda/sm90/dense/ragged_tail.cuh"

namespace fovea::gpu::sm90::one_wave {

/// The query tile of this cluster, without its keys.
template <class Config>
__device__ __forceinline__ WorkTile work_tile(const Params& params) {
  WorkTile work{};
  work.batch = static_cast<int>(blockIdx.z);
  work.head = static_cast<int>(blockIdx.y) << params.packed_shift;
  work.token = static_cast<int>(blockIdx.x) >> params.cluster_shift;
  work.token *= Config::kRowTile >> params.packed_shift;
  work.seq_q = params.seq_q;
  work.seq_k = params.seq_k;
  if (params.cu_seqlens_q == nullptr) return work;
  const dense::RaggedSequence sequence = dense::sequence_at(params, work.batch);
  work.q_begin = sequence.q_begin;
  work.k_begin = sequence.k_begin;
  work.seq_q = sequence.seq_q;
  work.seq_k = sequence.seq_k;
  return work;
}

/// Finds the key tiles that `rows` query rows from work.token on see.
template <class Config>
__device__ __forceinline__ void find_keys(const Params& params, WorkTile& work, int rows) {
  const detail::NarrowBand band(params.narrow_mask, work.seq_q, work.seq_k);
  work.low = band.low;
  work.high = band.high;
  const int end = min(work.token + (rows >> params.packed_shift), work.seq_q);
  detail::NarrowTiles tiles;
  if (work.token < end) tiles = band.tiles(__builtin_ctz(Config::kKeyTile), work.token, end);
  work.first = uniform(tiles.first);
  work.last = uniform(tiles.last);
  work.full_first = uniform(tiles.full_first);
  work.full_last = uniform(tiles.full_last);
}

/// Key tiles [begin, end).
struct Range {
  int begin, end;
};
/// The part-th of 2^shift parts of key tiles.
__device__ __forceinline__ Range part_of(Range tiles, int part, int shift) {
  const int count = tiles.end - tiles.begin;
  return {tiles.begin + (count * part >> shift), tiles.begin + (count * (part + 1) >> shift)};
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) attend(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) std::byte shared[];
  auto& storage = *reinterpret_cast<Storage<Config>*>(shared);
  grid_dependency_wait();
  WorkTile work = work_tile<Config>(params);
  if (work.token >= work.seq_q) return;
  const Loader<Config> loader(params, storage, work);
  loader.load_queries();
  const int shift = params.cluster_shift, ctas = 1 << shift, rank = static_cast<int>(blockIdx.x) & (ctas - 1);
  if (threadIdx.x == 0) storage.init_barriers(MergeCluster<Config>::partial_bytes(ctas));
  if (!Config::kSharedKeys && ctas > 1) cluster_arrive();
  find_keys<Config>(params, work, Config::kRowTile);
  const Range own = part_of({work.first, work.last}, rank, shift);
  __syncthreads();  // barriers have been initialised
  loader.load_keys(own.begin, own.end);
  launch_dependents();

  const int warpgroup = uniform(static_cast<int>(threadIdx.x) / 128);
  if constexpr (Config::kSharedKeys) {
    const Range keys = part_of(own, warpgroup, 1);
    Math<Config> math(params, storage, work, 0);
    math(keys.begin, keys.end, own.begin);
    math.softmax.reduce_sum();
    copy_async_wait_all();
    __syncthreads();  // no copy is in flight, and no MMA reads keys and values
    const MergeWarpgroups<Config> epilogue(params, storage, work);
    epilogue.leave(math.softmax, math.out, warpgroup);
    __syncthreads();
    epilogue.store();
  } else {
    work.token += warpgroup * 64 >> params.packed_shift;
    find_keys<Config>(params, work, 64);
    Math<Config> math(params, storage, work, warpgroup);
    if constexpr (Config::kInTurns) {
      math.in_turns(loader, own.begin, own.end);
    } else {
      math(max(own.begin, work.first), min(own.end, work.last), own.begin);
    }
    math.softmax.reduce_sum();
    barrier_wait(shared_address(&storage.q_full), 0);
    named_sync(1 + warpgroup, 128);  // the warpgroup reads no queries any more
    const MergeCluster<Config> epilogue(params, storage, work);
    if (ctas > 1) {
      cluster_wait();  // the other CTAs have initialised their barriers
      if (!epilogue.merge(math.softmax, math.out, rank)) return;
    }
    epilogue.store(math.softmax, math.out);
  }
}

template <class Config>
CudaStatus launch_attend(const Params& params, dim3 grid, int ordinal, Stream stream) {
  static_assert(sizeof(Storage<Config>) <= 227 * 1024);
  if (const CudaStatus good = allow_shared_bytes<&attend<Config>>(ordinal, sizeof(Storage<Config>)); !good) return good;
  const unsigned ctas = 1U << params.cluster_shift;
  const LaunchShape shape{.grid = dim3(grid.x * ctas, grid.y, grid.z),
                          .block = dim3(Config::kThreads),
                          .shared_bytes = sizeof(Storage<Config>),
                          .cluster = dim3(ctas),
                          .programmatic = true};
  return launch(&attend<Config>, shape, stream, params);
}

}  // namespace fovea::gpu::sm90::one_wave
