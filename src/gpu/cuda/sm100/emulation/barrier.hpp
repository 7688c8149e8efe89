// SPDX-License-Identifier: Apache-2.0
/// barrier.cuh for the host.
#pragma once

#include "gpu/cuda/sm100/emulation/machine.hpp"

namespace fovea::gpu::sm100 {

inline void barrier_init(std::uint64_t& barrier, int arrivals) { emulation::barrier_init(barrier, arrivals); }
inline void fence_barrier_init() { emulation::fence_barrier_init(); }
inline void barrier_arrive(std::uint64_t& barrier) { emulation::barrier_arrive(barrier, 0); }
inline void barrier_arrive_expect_tx(std::uint64_t& barrier, int bytes) { emulation::barrier_arrive(barrier, bytes); }
inline void barrier_wait(std::uint64_t& barrier, std::uint32_t parity) { emulation::barrier_wait(barrier, parity); }
inline void fence_shared_for_async() { emulation::fence_proxy_async(); }

}  // namespace fovea::gpu::sm100
