// SPDX-License-Identifier: Apache-2.0
/// Plans of backward passes under a block mask: which blocks fit, the lists from a problem, their workspace.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "gpu/cuda/common/block_plan.hpp"
#include "gpu/cuda/common/gradient/lists.hpp"
#include "gpu/cuda/common/gradient/plan.hpp"

namespace fovea::gpu::gradient {

/// Tiles of a kernel that walks lists.
struct ListedTileRows {
  int queries = kQueryTile, keys = 128;
};

/// Says which block masks a kernel does not take.
inline std::optional<Error> decline_block_mask(const Problem& p, const ListedTileRows& tile) {
  using detail::declined;
  constexpr std::int64_t kMostLists = 65534;  // a dimension of a grid, less one
  if (p.block_k % kUnitKeys != 0) return declined("block_k", p.block_k, "a multiple of " + std::to_string(kUnitKeys));
  if (p.block_q % tile.queries != 0) return declined("block_q", p.block_q, "a multiple of " + std::to_string(tile.queries));
  if (const std::int64_t tiles = detail::ceil_div(p.max_seq_q, tile.queries); tiles > kMostListedTiles)
    return declined("q.shape (query tiles under a block mask)", tiles, "at most " + std::to_string(kMostListedTiles));
  if (const std::int64_t tiles = detail::ceil_div(p.max_seq_k, tile.keys); tiles > kMostListedTiles)
    return declined("k.shape (key tiles under a block mask)", tiles, "at most " + std::to_string(kMostListedTiles));
  if (const std::int64_t steps = detail::ceil_div(p.max_seq_q, tile.queries) * p.group(); steps > kMostListedSteps)
    return declined("q.shape (query tiles of a kv head under a block mask)", steps, "at most " + std::to_string(kMostListedSteps));
  if (p.partial_block_indices && p.partial_block_indices->shape[3] > kMostListedSlots) {
    return declined("partial_block_indices.shape[3] (slot)", p.partial_block_indices->shape[3],
                    "at most " + std::to_string(kMostListedSlots));
  }
  if (p.batch * p.heads > kMostLists) return declined("batch * heads (under a block mask)", p.batch * p.heads, "at most 65534");
  return std::nullopt;
}

/// All but the arguments of a run and the workspace. `ctas`: 0 where key tiles need no order.
inline GradientLists gradient_lists(const Problem& p, const ListedTileRows& tile, int group, int ctas) {
  const auto own = [&](auto axis) {
    const auto differs = [&](const TensorDesc& desc) { return desc.shape[axis] != 1 && desc.strides[axis] != 0; };
    const auto of_list = [&](const std::optional<TensorDesc>& indices, const TensorDesc& counts) {
      return indices && (differs(*indices) || differs(counts));
    };
    return of_list(p.full_block_indices, p.full_block_counts) || of_list(p.partial_block_indices, p.partial_block_counts) ||
           (p.partial_block_indices && differs(p.partial_block_bits));
  };
  const auto slots_of = [](const std::optional<TensorDesc>& indices) { return indices ? indices->shape[3] : 0; };
  const bool own_batch = own(std::size_t{0}), own_head = own(std::size_t{1});
  const int lists_of_batch = own_head ? static_cast<int>(p.heads) : 1,
            key_tiles = static_cast<int>(detail::ceil_div(p.max_seq_k, tile.keys));
  const int of_batch = own_batch ? lists_of_batch : 0, of_head = own_head ? 1 : 0;
  const std::int64_t slots = slots_of(p.full_block_indices) + slots_of(p.partial_block_indices);
  return {.key_rows = tile.keys,
          .query_rows = tile.queries,
          .q_blocks = static_cast<int>(detail::ceil_div(p.max_seq_q, p.block_q)),
          .key_tiles = key_tiles,
          .query_tiles = static_cast<int>(detail::ceil_div(p.max_seq_q, tile.queries)),
          .words = detail::ceil_div(key_tiles, 32),
          .group = group,
          .ctas = ctas,
          .steps_of_batch = ctas > 0 ? static_cast<int>(p.heads) : of_batch,
          .steps_of_head = ctas > 0 ? 1 : of_head,
          .most_listed = static_cast<int>(std::min<std::int64_t>(key_tiles, slots * detail::ceil_div<std::int64_t>(p.block_k, tile.keys))),
          .of_batch = of_batch,
          .of_head = of_head,
          .count = lists_of_batch * (own_batch ? static_cast<int>(p.batch) : 1)};
}

/// Their workspace.
inline void place_lists(detail::WorkspaceArena& arena, GradientLists& lists, const Problem& p) {
  const std::int64_t rows = std::int64_t{lists.count} * lists.q_blocks, columns = std::int64_t{lists.count} * lists.key_tiles;
  lists.listed = arena.take<std::uint32_t>(rows * lists.words);
  lists.before = arena.take<int>(rows * (lists.words + 1));
  lists.slots = arena.take<std::uint16_t>(rows * detail::ceil_div(p.max_seq_k, p.block_k));
  lists.places = arena.take<std::uint16_t>(rows * lists.key_tiles);
  lists.step_counts = arena.take<int>(columns);
  lists.order = arena.take<std::uint16_t>(p.batch * p.kv_heads * lists.key_tiles);
  const bool ordered = lists.ctas > 0;
  lists.begins = arena.take<std::int64_t>(ordered ? p.batch * p.kv_heads * lists.key_tiles : 0);
  const std::int64_t with_steps = ordered ? p.batch * p.heads : std::int64_t{lists.count};
  lists.steps = arena.take<ListedStep>(with_steps * lists.key_tiles * lists.query_tiles);
  lists.tiles = arena.take<ListedKeyTile>(ordered ? 0 : rows * lists.most_listed);
}

/// Adds the arguments of a run.
inline void fill_lists_of(GradientLists& lists, const Problem& p, const AttentionArgs& args) { lists.of = block_lists(p, args, kUnitKeys); }

}  // namespace fovea::gpu::gradient
