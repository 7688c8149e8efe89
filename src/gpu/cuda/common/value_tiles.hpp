// SPDX-License-Identifier: Apache-2.0
/// Where e4m3 values lie for MMAs that contract contiguous elements of both operands: V^T by key tiles, as they lie in shared memory,
/// [tile][kv_head][16 keys][column][key], zeros past the sequence's end and the head dim.
///
/// Keys of a 16 are in the order of a lane's accumulators: four neighbours are keys 2t, 2t + 1, 2t + 8, 2t + 9. So the probabilities that a
/// lane has of these are its registers of the first operand (round_to in sm90/gemm.cuh).
#pragma once

#include <algorithm>
#include <cstdint>

namespace fovea::gpu {

inline constexpr int kValueUnit = 16;  ///< keys of a column that lie together

/// The key at a place of a unit, and the place of a key.
constexpr int value_key(int place) { return place / 4 * 2 + place % 4 / 2 * 8 + place % 2; }
constexpr int value_place(int key) { return key % 8 / 2 * 4 + key / 8 * 2 + key % 2; }

/// The first tile of a sequence: each has one at least. Of a ragged batch, no sum over the others is needed, and tiles are left over.
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

/// Tiles of quantised V have so many keys and as many columns as the head dim, whoever writes them.
inline constexpr int kQuantizedValueKeys = 128;

#ifdef __CUDACC__
/// Four columns of the keys at four neighbouring places. `key`: four columns of each.
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
