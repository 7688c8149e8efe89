// SPDX-License-Identifier: Apache-2.0
/// Vector clocks: what an agent knows to have happened before its next step.
#pragma once

#include <array>
#include <cstdint>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FOVEA_HOST_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define FOVEA_HOST_CLONES
#endif

namespace fovea::gpu::sm100::emulation {

inline constexpr int kMostThreads = 512;
inline constexpr int kMostBarriers = 64;

// ---- agents of shared memory: a thread, the tensor core, or the copies of an mbarrier -------------

inline constexpr int kTensorCore = kMostThreads;
inline constexpr int kCopies = kTensorCore + 1;  ///< + index of the mbarrier; its time counts phases
inline constexpr int kSharedAgents = kCopies + kMostBarriers;

// ---- agents of tensor memory: the loads of a thread, its stores, or the tensor core --------------

inline constexpr int kLoads = 0, kStores = kMostThreads;
inline constexpr int kTensorCoreInTensor = 2 * kMostThreads;
inline constexpr int kTensorAgents = kTensorCoreInTensor + 1;

using TensorClock = std::array<std::uint32_t, kTensorAgents>;

/// The part of a clock that mbarriers hand on.
struct Clock {
  std::array<std::uint32_t, kSharedAgents> shared;  ///< accesses of shared memory
  std::array<std::uint32_t, kMostThreads> proxied;  ///< threads' accesses that the async proxy sees
  TensorClock tensor;                               ///< accesses before some fence::before_thread_sync
};

void join(std::uint32_t* to, const std::uint32_t* from, int count);

inline void join(Clock& to, const Clock& from) {
  join(to.shared.data(), from.shared.data(), kSharedAgents);
  join(to.proxied.data(), from.proxied.data(), kMostThreads);
  join(to.tensor.data(), from.tensor.data(), kTensorAgents);
}
inline void join(TensorClock& to, const TensorClock& from) { join(to.data(), from.data(), kTensorAgents); }

}  // namespace fovea::gpu::sm100::emulation
