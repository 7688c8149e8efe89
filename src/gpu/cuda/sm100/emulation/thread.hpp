// SPDX-License-Identifier: Apache-2.0
/// thread.cuh for the host.
#pragma once

#include <cstdint>

#include "gpu/cuda/sm100/emulation/machine.hpp"

namespace fovea::gpu::sm100 {

inline int thread() { return emulation::place().thread; }
inline int lane() { return emulation::place().thread % 32; }
inline int warp() {
  emulation::rendezvous("warp()");
  return emulation::place().thread / 32;
}
inline int block() { return emulation::place().block; }
inline int blocks() { return emulation::place().blocks; }

inline bool elect_one() {
  emulation::rendezvous("elect.sync");
  return lane() == emulation::elected_lane();
}
inline void sync_warp() { emulation::sync_warp(); }
inline bool warp_any(bool condition) { return emulation::rendezvous("vote.any", 0, condition) != 0; }

inline void sync_block() { emulation::named_barrier(0, emulation::block_threads(), true); }
inline void named_barrier_sync(int id, int threads) { emulation::named_barrier(id, threads, true); }
inline void named_barrier_arrive(int id, int threads) { emulation::named_barrier(id, threads, false); }

template <int kRegisters>
inline void warpgroup_reg_alloc() {
  emulation::set_registers(kRegisters, true);
}
template <int kRegisters>
inline void warpgroup_reg_dealloc() {
  emulation::set_registers(kRegisters, false);
}

template <class Storage>
inline Storage& shared_storage() {
  return *reinterpret_cast<Storage*>(emulation::shared_memory(sizeof(Storage)));
}
inline std::uint32_t shared_address(const void* shared) { return emulation::shared_address(shared); }

template <class T>
inline T load_shared(const T& from) {
  emulation::shared_access(&from, sizeof(T), false);
  return from;
}
template <class T>
inline void store_shared(T& to, T value) {
  emulation::shared_access(&to, sizeof(T), true);
  to = value;
}

}  // namespace fovea::gpu::sm100
