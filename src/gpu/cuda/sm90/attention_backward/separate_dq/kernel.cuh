// SPDX-License-Identifier: Apache-2.0
/// Separate kernels of dk and dv, and of dq, for head dims whose accumulators fill the registers.
#pragma once

#include "gpu/cuda/common/target.cuh"
#include "gpu/cuda/sm90/attention_backward/config.hpp"
#include "gpu/cuda/sm90/attention_backward/load.cuh"
#include "gpu/cuda/sm90/attention_backward/separate_dq/dkdv.cuh"
#include "gpu/cuda/sm90/attention_backward/separate_dq/dq.cuh"
#include "gpu/cuda/sm90/thread.cuh"

namespace fovea::gpu::sm90::attention_backward {

/// A CTA for each key tile. The next kernel, that of dq, may start on idle multiprocessors: it needs only
/// results that this one has waited for.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) differentiate_keys(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) std::byte shared[];
  auto& storage = *reinterpret_cast<Storage<Config>*>(shared);
  if (threadIdx.x == 0) {
    constexpr int kScoreWarps = 4 * Config::kScoreWarpgroups;
    barrier_init(shared_address(&storage.kv_full), 1);
    barriers_init(storage.q_full, 1);
    barriers_init(storage.dout_full, 1);
    barriers_init(storage.empty, kScoreWarps);
    barriers_init(storage.weights_full, 4);
    fence_barrier_init();
    for (const ClippedRows* rows : {&params.q, &params.k, &params.v, &params.dout}) prefetch_tensor_map(&rows->map);
    storage.tile = key_tile_at(params, Config::kKeyTile, static_cast<int>(blockIdx.x));
    storage.step_count =
        params.heads_per_kv * order_of(params, storage.tile.sequence, Config::kKeyTile).query_tiles_of(storage.tile.index).size();
  }
  __syncthreads();
  grid_dependency_wait();
  launch_dependents();
  fence_global_for_async();
  if (storage.tile.none) return;
  const int ticket = static_cast<int>(blockIdx.x), warpgroup = uniform(threadIdx.x / 128);
  if (warpgroup < Config::kScoreWarpgroups) {
    warpgroup_reg_alloc<Config::kScoreRegisters>();
    DkDv<Config>(params, storage, warpgroup)(ticket);
  } else {
    warpgroup_reg_dealloc<Config::kLoadRegisters>();
    if (threadIdx.x == Config::kThreads - 128) load_tiles(params, storage);
  }
}

/// A CTA for 128 queries of a head. It overlaps the kernel before it, and ends after it: the next kernel
/// needs both.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) differentiate_queries(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) std::byte shared[];
  auto& storage = *reinterpret_cast<QueryStorage<Config>*>(shared);
  __shared__ QueryRows rows;
  if (threadIdx.x == 0) {
    constexpr int kMathWarps = 4 * kQueryCells;
    barrier_init(shared_address(&storage.q_full), 1);
    barriers_init(storage.k_full, 1);
    barriers_init(storage.v_full, 1);
    barriers_init(storage.k_empty, kMathWarps);
    barriers_init(storage.v_empty, kMathWarps);
    fence_barrier_init();
    for (const ClippedRows* of : {&params.q, &params.dq_k, &params.dq_v, &params.dout, &params.dq}) prefetch_tensor_map(&of->map);
    rows = query_rows_at(params, static_cast<int>(gridDim.x), static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y), Config::kKeyTile);
  }
  __syncthreads();
  const int warpgroup = uniform(threadIdx.x / 128);
  if (rows.first >= rows.last) {  // `prepare` has stored zeros
  } else if (warpgroup < kQueryCells) {
    warpgroup_reg_alloc<Config::kMathRegisters>();
    Dq<Config>(params, storage, rows, warpgroup)();
  } else {
    warpgroup_reg_dealloc<Config::kLoadRegisters>();
    if (threadIdx.x == Config::kThreads - 128) load_tiles(params, storage, rows);
  }
  grid_dependency_wait();
}

template <class Config>
CudaStatus launch_separate(const Params& params, int ordinal, Stream stream) {
  using OfQueries = QueryConfig<Config>;
  static_assert(sizeof(Storage<Config>) <= 226 * 1024 && sizeof(QueryStorage<OfQueries>) <= 226 * 1024);
  if (const CudaStatus good = allow_shared_bytes<&differentiate_keys<Config>>(ordinal, sizeof(Storage<Config>)); !good) return good;
  if (const CudaStatus good = allow_shared_bytes<&differentiate_queries<OfQueries>>(ordinal, sizeof(QueryStorage<OfQueries>)); !good)
    return good;
  LaunchShape shape{.grid = dim3(static_cast<unsigned>(params.key_tiles) * static_cast<unsigned>(params.kv_heads)),
                    .block = dim3(Config::kThreads),
                    .shared_bytes = sizeof(Storage<Config>),
                    .programmatic = true};
  if (const CudaStatus done = launch(&differentiate_keys<Config>, shape, stream, params); !done) return done;
  shape.grid = dim3(static_cast<unsigned>(params.row_tiles), static_cast<unsigned>(params.heads));
  shape.block = dim3(OfQueries::kThreads);
  shape.shared_bytes = sizeof(QueryStorage<OfQueries>);
  return launch(&differentiate_queries<OfQueries>, shape, stream, params);
}

}  // namespace fovea::gpu::sm90::attention_backward
