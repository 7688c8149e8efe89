// SPDX-License-Identifier: Apache-2.0
/// The lists of a block mask from a problem and the arguments of a run.
#pragma once

#include <cstdint>
#include <numeric>
#include <optional>
#include <string>

#include "fovea/attention.hpp"
#include "gpu/cuda/common/block_lists.hpp"
#include "op/attention/problem.hpp"
#include "op/common/division.hpp"

namespace fovea::gpu {

inline BlockStrides block_strides(const TensorDesc& desc) {
  return {desc.shape[0] == 1 ? 0 : desc.strides[0], desc.shape[1] == 1 ? 0 : desc.strides[1], desc.strides[2]};
}

inline BlockList block_list(const std::optional<TensorDesc>& indices, const TensorDesc& counts, const std::int32_t* counts_data,
                            const std::int32_t* indices_data) {
  if (!indices || indices->shape[3] == 0) return {};
  return {counts_data, indices_data, block_strides(counts), block_strides(*indices), static_cast<int>(indices->shape[3])};
}

/// `key_tile`: keys of a kernel's tile, of which a block has a whole number.
inline BlockLists block_lists(const detail::AttentionProblem& p, const AttentionArgs& args, int key_tile) {
  return {.full = block_list(p.full_block_indices, p.full_block_counts, args.full_block_counts, args.full_block_indices),
          .partial = block_list(p.partial_block_indices, p.partial_block_counts, args.partial_block_counts, args.partial_block_indices),
          .bits = args.partial_block_bits,
          .of_bits = p.partial_block_indices ? block_strides(p.partial_block_bits) : BlockStrides{},
          .block_q = static_cast<int>(p.block_q),
          .block_k = static_cast<int>(p.block_k),
          .key_blocks = static_cast<int>(detail::ceil_div(p.max_seq_k, p.block_k)),
          .tiles_of_block = static_cast<int>(p.block_k) / key_tile};
}

/// Whether each query head has the lists of all others.
inline bool heads_share_lists(const detail::AttentionProblem& p) {
  const auto shared = [](const TensorDesc& desc) { return desc.shape[1] == 1 || desc.strides[1] == 0; };
  const bool full = !p.full_block_indices || (shared(p.full_block_counts) && shared(*p.full_block_indices));
  return full &&
         (!p.partial_block_indices || (shared(p.partial_block_counts) && shared(*p.partial_block_indices) && shared(p.partial_block_bits)));
}

/// Query heads that share a query tile, so that its tokens lie in one query block. There is no such number where it is 0.
inline int heads_of_listed_tile(const detail::AttentionProblem& p, int row_tile) {
  const int packed = row_tile / static_cast<int>(std::gcd<std::int64_t>(row_tile, p.block_q));
  if (packed == 1) return 1;
  const bool fits = p.group() % packed == 0 && p.q.head != 0 && heads_share_lists(p) && 2 * packed <= row_tile;
  return fits ? packed : 0;
}

/// Says which blocks do not fit a kernel's tiles.
inline std::optional<Error> decline_blocks(const detail::AttentionProblem& p, int row_tile, int key_tile) {
  using detail::declined;
  constexpr std::int64_t kMostTiles = std::int64_t{1} << 29;
  if (p.block_k % key_tile != 0) return declined("block_k", p.block_k, "a multiple of " + std::to_string(key_tile));
  if (heads_of_listed_tile(p, row_tile) == 0) {
    return declined("block_q", p.block_q, "a multiple of " + std::to_string(row_tile) + ", or less where heads of a group share lists");
  }
  const auto slots = [](const std::optional<TensorDesc>& list) { return list ? list->shape[3] : 0; };
  const std::int64_t full = slots(p.full_block_indices), partial = slots(p.partial_block_indices), tiles = p.block_k / key_tile;
  if (full * tiles >= kMostTiles) return declined("full_block_indices.shape[3] (slot)", full, "key tiles below 2^29");
  if (partial * tiles >= kMostTiles) return declined("partial_block_indices.shape[3] (slot)", partial, "key tiles below 2^29");
  return std::nullopt;
}

}  // namespace fovea::gpu
