// SPDX-License-Identifier: Apache-2.0
/// CUDA's words for a warp, on the emulation of AMD's waves: each half of a wave is a warp. The build includes this before
/// every other header (-include).
#pragma once

#include <algorithm>
#include <bit>

#include "gpu/hip/emulation/wave.hpp"

namespace fovea::gpu::emulation {

/// The collectives that each lane may still take: code that does not end is a fault.
inline int collectives_left = 0;

inline int of_warp_lane(const char* name, int x, int from) {
  if (--collectives_left < 0) fail("the warp does not end");
  return cdna::exchange(name, x, cdna::lane() / 32 * 32 + from);
}

/// Is a number where CUDA has a variable.
struct ThreadIndex {
  struct {
    operator unsigned() const { return static_cast<unsigned>(cdna::thread()); }
  } x;
};

}  // namespace fovea::gpu::emulation

using std::max;
using std::min;

inline constexpr fovea::gpu::emulation::ThreadIndex threadIdx{};

inline int __shfl_sync(unsigned, int x, int from) { return fovea::gpu::emulation::of_warp_lane("__shfl_sync", x, from % 32); }
inline int __shfl_xor_sync(unsigned, int x, int mask) {
  return fovea::gpu::emulation::of_warp_lane("__shfl_xor_sync", x, fovea::gpu::cdna::lane() % 32 ^ mask);
}
/// Lanes without one before them keep their value.
inline int __shfl_up_sync(unsigned, int x, int distance) {
  const int lane = fovea::gpu::cdna::lane() % 32;
  return fovea::gpu::emulation::of_warp_lane("__shfl_up_sync", x, lane < distance ? lane : lane - distance);
}
inline unsigned __ballot_sync(unsigned, bool condition) {
  if (--fovea::gpu::emulation::collectives_left < 0) fovea::gpu::emulation::fail("the warp does not end");
  return static_cast<unsigned>(fovea::gpu::cdna::ballot(condition) >> fovea::gpu::cdna::lane() / 32 * 32);
}
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
