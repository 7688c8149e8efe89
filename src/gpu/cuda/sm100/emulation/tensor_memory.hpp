// SPDX-License-Identifier: Apache-2.0
/// tensor_memory.cuh for the host.
#pragma once

#include "gpu/cuda/sm100/emulation/machine.hpp"

namespace fovea::gpu::sm100 {

template <int kColumns>
inline void tmem_allocate(std::uint32_t& shared_slot) {
  emulation::tensor_allocate(shared_slot, kColumns);
}
inline void tmem_relinquish() { emulation::tensor_relinquish(); }
template <int kColumns>
inline void tmem_free(std::uint32_t address) {
  emulation::tensor_free(address, kColumns);
}

template <int... kColumns>
inline void tmem_load_wait([[maybe_unused]] std::uint32_t (&... loaded)[kColumns]) {
  emulation::tensor_load_wait();
}
inline void tmem_store_wait() { emulation::tensor_store_wait(); }
inline void tmem_fence_before_sync() { emulation::tensor_fence_before_sync(); }
inline void tmem_fence_after_sync() { emulation::tensor_fence_after_sync(); }

template <int kColumns>
inline void tmem_load(std::uint32_t (&to)[kColumns], std::uint32_t address) {
  static_assert(kColumns >= 8 && kColumns <= 128 && (kColumns & (kColumns - 1)) == 0);
  emulation::tensor_load(to, kColumns, address);
}
template <int kColumns>
inline void tmem_store(std::uint32_t address, const std::uint32_t (&from)[kColumns]) {
  static_assert(kColumns >= 8 && kColumns <= 128 && (kColumns & (kColumns - 1)) == 0);
  emulation::tensor_store(from, kColumns, address);
}

}  // namespace fovea::gpu::sm100
