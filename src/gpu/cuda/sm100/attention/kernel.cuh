// SPDX-License-Identifier: Apache-2.0
/// The forward kernel: storage, barriers, tensor memory, roles.
#pragma once

#include "gpu/cuda/sm100/attention/correction.cuh"
#include "gpu/cuda/sm100/attention/load.cuh"
#include "gpu/cuda/sm100/attention/mma_warp.cuh"
#include "gpu/cuda/sm100/attention/softmax.cuh"
#include "gpu/cuda/sm100/thread.cuh"

namespace fovea::gpu::sm100::attention {

/// One CTA for each work tile.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) attend(const __grid_constant__ Params params) {
  auto& storage = shared_storage<Storage<Config>>();
  const WorkTile work = work_tile(params, block());
  if (work.token >= work.seq_q) return;
  const int role = warp();
  if (thread() == 0) {
    storage.init_barriers();
    for (const sm90::ClippedRows* rows : {&params.q, &params.k, &params.v}) prefetch_tensor_map(&rows->map);
  }
  if (role == kMmaWarp) {
    tmem_allocate<kTensorColumns>(storage.tensor_memory);
    tmem_relinquish();
    tmem_fence_before_sync();
  }
  sync_block();
  tmem_fence_after_sync();
  const std::uint32_t tensor = load_shared(storage.tensor_memory);
  if (role < kCorrectionWarp) {
    warpgroup_reg_alloc<Config::kTuning.softmax_registers>();
    Softmax<Config>(params, storage, work, tensor, role)();
  } else if (role < kMmaWarp) {
    warpgroup_reg_dealloc<Config::kTuning.correction_registers>();
    Correction<Config>(params, storage, work, tensor, role)();
  } else {
    warpgroup_reg_dealloc<Config::kTuning.other_registers>();
    if (role == kMmaWarp && elect_one()) MmaIssuer<Config>(storage, tensor)(key_tiles(work));
    if (role == kLoadWarp && elect_one()) Loader<Config>(params, storage, work)();
    sync_warp();
  }
  sync_block();
  if (role != kMmaWarp) return;
  tmem_fence_after_sync();
  tmem_free<kTensorColumns>(tensor);
}

template <class Config>
CudaStatus launch_attend(const Params& params, int ctas, int ordinal, Stream stream) {
  static_assert(sizeof(Storage<Config>) <= 227 * 1024);
  if (const CudaStatus good = allow_shared_bytes<&attend<Config>>(ordinal, sizeof(Storage<Config>)); !good) return good;
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(ctas)), .block = dim3(Config::kThreads), .shared_bytes = sizeof(Storage<Config>)};
  return launch(&attend<Config>, shape, stream, params);
}

}  // namespace fovea::gpu::sm100::attention
