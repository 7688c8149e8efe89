// SPDX-License-Identifier: Apache-2.0
/// How values get into units of value_tiles.hpp.
#pragma once

#include <cstdint>

#include "gpu/cuda/common/value_tiles.hpp"

namespace fovea::gpu {

/// Four columns of the keys at four neighbouring places. `key`: four columns of each.
__device__ __forceinline__ void transpose_bytes(std::uint32_t (&column)[4], const std::uint32_t (&key)[4]) {
  const std::uint32_t low = __byte_perm(key[0], key[1], 0x5140), low_next = __byte_perm(key[2], key[3], 0x5140);
  const std::uint32_t high = __byte_perm(key[0], key[1], 0x7362), high_next = __byte_perm(key[2], key[3], 0x7362);
  column[0] = __byte_perm(low, low_next, 0x5410);
  column[1] = __byte_perm(low, low_next, 0x7632);
  column[2] = __byte_perm(high, high_next, 0x5410);
  column[3] = __byte_perm(high, high_next, 0x7632);
}

}  // namespace fovea::gpu
