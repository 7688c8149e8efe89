// SPDX-License-Identifier: Apache-2.0
/// Value tiles: e4m3 values for MMAs whose operands both have the contracted dimension contiguous. V^T by key tiles, in the
/// layout of shared memory: [tile][kv_head][16 keys][column][key], zeros past the sequence's end and the head dim.
///
/// 16 keys are in the order of a lane's accumulators: four neighbours are keys 2t, 2t + 1, 2t + 8, 2t + 9. A lane's
/// probabilities of these are its registers of the A operand (round_to in sm90/gemm.cuh).
#pragma once

#include <algorithm>
#include <cstdint>

namespace fovea::gpu {

inline constexpr int kValueUnit = 16;  ///< contiguous keys of a column

/// The key at a place of a unit, and the place of a key.
constexpr int value_key(int place) { return place / 4 * 2 + place % 4 / 2 * 8 + place % 2; }
constexpr int value_place(int key) { return key % 8 / 2 * 4 + key / 8 * 2 + key % 2; }

/// The first tile of a sequence; each has at least one. In a ragged batch it needs no sum over the others, and leaves gaps.
constexpr std::int64_t first_value_tile(bool ragged, int seq_k, int sequence, int k_begin, int key_tile) {
  return ragged ? k_begin / key_tile + sequence : std::int64_t{sequence} * std::max((seq_k + key_tile - 1) / key_tile, 1);
}
/// Value tiles of all heads. `Problem`: of attention.
template <class Problem>
constexpr std::int64_t value_tile_count(const Problem& p, int key_tile) {
  const std::int64_t of_head =
      p.ragged ? p.total_k / key_tile + p.batch : p.batch * std::max((p.max_seq_k + key_tile - 1) / key_tile, std::int64_t{1});
  return of_head * p.kv_heads;
}

/// Keys of a tile of quantised V, in the quantisers and in attention. It has as many columns as the head dim.
inline constexpr int kQuantizedValueKeys = 128;

#ifdef __CUDACC__
/// Transposes 4 x 4 bytes: `key` has four columns of each of four neighbouring keys.
__device__ __forceinline__ void transpose_bytes(std::uint32_t (&column)[4], const std::uint32_t (&key)[4]) {
  const std::uint32_t low = __byte_perm(key[0], key[1], 0x5140), low_next = __byte_perm(key[2], key[3], 0x5140);
  const std::uint32_t high = __byte_perm(key[0], key[1], 0x7362), high_next = __byte_perm(key[2], key[3], 0x7362);
  column[0] = __byte_perm(low, low_next, 0x5410);
  column[1] = __byte_perm(low, low_next, 0x7632);
  column[2] = __byte_perm(high, high_next, 0x5410);
  column[3] = __byte_perm(high, high_next, 0x7632);
}
#endif

}  // namespace fovea::gpu
