// SPDX-License-Identifier: Apache-2.0
/// Scales of work tiles in shared memory. A warp loads them ahead of the consumers, which would otherwise
/// wait for memory twice a work tile.
#pragma once

#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/common/quantized/scales.cuh"
#include "gpu/cuda/sm90/barrier.cuh"
#include "gpu/cuda/sm90/dense/tile_scheduler.cuh"
#include "gpu/cuda/sm90/shared_memory.cuh"

namespace fovea::gpu::sm90::quantized_attention {

template <class Config>
class WorkScales {
 public:
  struct Of {
    float query[Config::kRowTile];   // [row]
    float value[Config::kHeadDimV];  // [channel]; 1 without scales of values
    const float* key[4];             // [lane % 4]: scale of the lane's first keys of the sequence
  };

  __device__ const Of& operator[](int slot) const { return of[slot]; }

  __device__ void init_barriers() { barriers_init(full, 1); }

  /// Loads the scales of all work tiles, by one warp, as the scheduler finds them.
  template <class Params, class Storage>
  __device__ __forceinline__ void load(const Params& params, Storage& storage) {
    PipelineState<dense::kWorkTiles> at;
    for (bool done = false; !done; at.advance()) {
      barrier_wait(shared_address(&storage.work_full[at.stage]), at.parity);
      const WorkTile& work = storage.work_tiles[at.stage];
      done = work.done;
      if (!done) load(gpu::Scales(params, work), work, of[at.stage]);
      __syncwarp();
      if (lane_index() == 0) barrier_arrive(shared_address(&full[at.stage]));
    }
  }
  /// Consumers wait here before they read the slot.
  __device__ __forceinline__ void wait(int slot, std::uint32_t parity) { barrier_wait(shared_address(&full[slot]), parity); }

 private:
  /// All loads are in flight together.
  template <class Scales>
  static __device__ __forceinline__ void load(const Scales& scales, const WorkTile& work, Of& to) {
    constexpr int kRows = Config::kRowTile / 32, kColumns = Config::kHeadDimV / 32;
    const int lane = lane_index();
    const float* from = scales.value_scales();
    float value[kColumns], query[kRows];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) value[i] = from != nullptr ? from[i * 32 + lane] : 1;
#pragma unroll
    for (int i = 0; i < kRows; ++i) query[i] = scales.of_query(min(work.token + i * 32 + lane, work.seq_q - 1));
    if (lane < 4) to.key[lane] = scales.at_key(lane_column(lane));
#pragma unroll
    for (int i = 0; i < kRows; ++i) to.query[i * 32 + lane] = query[i];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) to.value[i * 32 + lane] = value[i];
  }

  Of of[dense::kWorkTiles];
  std::uint64_t full[dense::kWorkTiles];  // a lane of the warp arrives, consumers wait; work_empty frees the slot
};

}  // namespace fovea::gpu::sm90::quantized_attention
