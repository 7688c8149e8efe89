// SPDX-License-Identifier: Apache-2.0
#include "reference/block_mask.hpp"

#include <algorithm>

namespace fovea::reference {
namespace {

/// Offset of [batch, head, q_block, last], where an extent of 1 stands for every batch item or head.
std::int64_t offset(const TensorDesc& desc, std::int64_t batch, std::int64_t head, std::int64_t q_block, std::int64_t last = 0) {
  const std::int64_t at[]{desc.shape[0] == 1 ? 0 : batch, desc.shape[1] == 1 ? 0 : head, q_block, last};
  std::int64_t sum = 0;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(desc.rank); ++axis) sum += at[axis] * desc.strides[axis];
  return sum;
}

std::int64_t count_of(const TensorDesc& counts, const std::int32_t* data, std::int64_t slots, std::int64_t batch, std::int64_t head,
                      std::int64_t q_block) {
  if (slots == 0) return 0;
  return std::clamp<std::int64_t>(data[offset(counts, batch, head, q_block)], 0, slots);
}

}  // namespace

std::vector<std::int64_t> BlockMask::seen(std::vector<std::int64_t> keys, std::int64_t batch, std::int64_t head, std::int64_t row) const {
  if (!problem_.has_block_mask()) return keys;
  const std::int64_t q_block = row / problem_.block_q, q_row = row % problem_.block_q;
  const std::int64_t words = problem_.block_k / 32, block_words = problem_.block_q * words;
  const auto sees = [&](std::int64_t key) {
    const std::int64_t block = key / problem_.block_k, bit = key % problem_.block_k;
    if (problem_.full_block_indices) {
      const TensorDesc& list = *problem_.full_block_indices;
      const std::int64_t count = count_of(problem_.full_block_counts, args_.full_block_counts, list.shape[3], batch, head, q_block);
      for (std::int64_t slot = 0; slot < count; ++slot) {
        if (args_.full_block_indices[offset(list, batch, head, q_block, slot)] == block) return true;
      }
    }
    if (!problem_.partial_block_indices) return false;
    const TensorDesc& list = *problem_.partial_block_indices;
    const std::int64_t count = count_of(problem_.partial_block_counts, args_.partial_block_counts, list.shape[3], batch, head, q_block);
    for (std::int64_t slot = 0; slot < count; ++slot) {
      if (args_.partial_block_indices[offset(list, batch, head, q_block, slot)] != block) continue;
      const std::int64_t word = slot * block_words + q_row * words + bit / 32;
      const auto bits =
          static_cast<std::uint32_t>(args_.partial_block_bits[offset(problem_.partial_block_bits, batch, head, q_block, word)]);
      if ((bits >> (bit % 32) & 1) != 0) return true;
    }
    return false;
  };
  std::erase_if(keys, [&](std::int64_t key) { return !sees(key); });
  return keys;
}

}  // namespace fovea::reference
