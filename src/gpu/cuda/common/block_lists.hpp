// SPDX-License-Identifier: Apache-2.0
/// The lists of a block mask, as kernels read them.
#pragma once

#include <cstdint>

namespace fovea::gpu {

/// Offsets of [batch, head, q_block] in elements; 0 for what is broadcast.
struct BlockStrides {
  std::int64_t batch = 0, head = 0, q_block = 0;
};

struct BlockList {
  const std::int32_t *counts = nullptr, *indices = nullptr;  ///< both null: an empty list
  BlockStrides of_counts{}, of_indices{};
  int slots = 0;
};

struct BlockLists {
  BlockList full{}, partial{};
  const std::int32_t* bits = nullptr;
  BlockStrides of_bits{};
  int block_q = 1, block_k = 32;
  int key_blocks = 0;      ///< numbers from here on name no block
  int tiles_of_block = 1;  ///< key tiles
};

}  // namespace fovea::gpu
