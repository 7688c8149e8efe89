// SPDX-License-Identifier: Apache-2.0
/// Sizes and shared memory of the kernel for few queries of each sequence.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/cuda/sm90/barrier.cuh"
#include "gpu/cuda/sm90/index_logits/params.hpp"
#include "gpu/cuda/sm90/thread.cuh"

namespace fovea::gpu::sm90::indexer::decode {

/// `kHeads`: columns of an MMA that a query takes. `kQueries`: of a sequence.
template <int kHeads_, int kQueries_>
struct Config {
  static constexpr int kHeads = kHeads_, kQueries = kQueries_, kColumns = kHeads * kQueries;
  static constexpr int kWarpgroups = 4, kProducers = 2;  ///< for math; warps that load keys
  static constexpr bool kPaged = true;
  static constexpr int kKeys = kMmaRows;                    ///< of a stage
  static constexpr int kThreads = 128 * (kWarpgroups + 1);  ///< the first warpgroup loads
  static constexpr int kLoadRegisters = kColumns > 64 ? 32 : 96, kMathRegisters = kColumns > 64 ? 112 : 96;
  static constexpr int kKeyBytes = kKeys * kDim, kQueryBytes = kColumns * kDim;
  static constexpr int kQueryStages = 2, kKeyStages = 8;
  static_assert(kKeyStages % kWarpgroups == 0 && kWarpgroups % kProducers == 0,
                "each stage of the ring has one warpgroup and one producer");
  static constexpr int stage_cost(int) { return 1; }  ///< codes of a sequence's queries take as many bytes
};

/// A box has two to the power of this many keys.
__device__ inline int box_bits_of(const Params& params) { return __ffs(params.box) - 1; }

/// Moves to the next stage of one of kTurns that share a ring.
template <int kTurns, int kStages>
__device__ __forceinline__ void advance(PipelineState<kStages>& at) {
  static_assert(kStages % kTurns == 0);
  at.stage += kTurns;
  if (at.stage >= kStages) at.stage -= kStages, at.parity ^= 1;
}

/// Where keys of one TMA box lie. Those of block -1 arrive as zeros, with NaN as their scales.
struct alignas(16) KeyBox {
  int block, token;
  const float* scales;
};

/// Those stages of a sequence that are in the CTA's share.
struct alignas(16) SequencePart {
  int row, length;  ///< the first query; keys
  int from, to;     ///< stages: the first, and behind the last
};

template <class Config>
struct Storage {
  alignas(1024) std::byte k[Config::kKeyStages][Config::kKeyBytes];      // (key, 128)
  alignas(1024) std::byte q[Config::kQueryStages][Config::kQueryBytes];  // (query, head, 128)
  KeyBox boxes[Config::kProducers][32];                                  // of a batch
  SequencePart sequences[Config::kQueryStages];
  alignas(8) float weights[Config::kQueryStages][Config::kColumns];
  alignas(16) float scales[Config::kKeyStages][Config::kKeys];
  // full: a lane of a producer arrives, for queries also all lanes when their copies of weights are complete. TMA completes the bytes of
  // codes and scales. Math warps wait.
  // empty: a lane of each math warp that reads the stage arrives; the producer waits.
  alignas(8) std::uint64_t k_full[Config::kKeyStages], k_empty[Config::kKeyStages];
  std::uint64_t q_full[Config::kQueryStages], q_empty[Config::kQueryStages];

  /// By a warp.
  __device__ __forceinline__ void init() {
    const auto init_ring = [](std::uint64_t* barriers, int count, int arrivals) {
      if (lane_index() < count) barrier_init(shared_address(&barriers[lane_index()]), arrivals);
    };
    init_ring(k_full, Config::kKeyStages, 1);
    init_ring(k_empty, Config::kKeyStages, 4);
    init_ring(q_full, Config::kQueryStages, 33);
    init_ring(q_empty, Config::kQueryStages, 4 * Config::kWarpgroups);
    fence_barrier_init();
  }
};

}  // namespace fovea::gpu::sm90::indexer::decode
