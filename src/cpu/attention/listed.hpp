// SPDX-License-Identifier: Apache-2.0
/// Block masks: which keys of a tile the lists let each row see, as bits.
#pragma once

#include <cstdint>
#include <optional>

#include "fovea/attention.hpp"
#include "op/attention/problem.hpp"

namespace fovea::cpu {

/// The lists of a plan; the fields of the problem.
struct BlockLists {
  std::optional<TensorDesc> full{}, partial{};
  TensorDesc full_counts{}, partial_counts{}, bits{};
  std::int64_t block_q = 0, block_k = 0;
};

inline std::optional<BlockLists> block_lists(const detail::AttentionProblem& p) {
  if (!p.has_block_mask()) return std::nullopt;
  return BlockLists{.full = p.full_block_indices,
                    .partial = p.partial_block_indices,
                    .full_counts = p.full_block_counts,
                    .partial_counts = p.partial_block_counts,
                    .bits = p.partial_block_bits,
                    .block_q = p.block_q,
                    .block_k = p.block_k};
}

/// Pointers of a run.
struct BlockArgs {
  const std::int32_t *full_counts = nullptr, *full = nullptr, *partial_counts = nullptr, *partial = nullptr, *bits = nullptr;
};

inline BlockArgs block_args(const AttentionArgs& args) {
  return {args.full_block_counts, args.full_block_indices, args.partial_block_counts, args.partial_block_indices, args.partial_block_bits};
}

inline constexpr int kKeysOfWord = 32;

/// Rows of one query block and head against a tile of keys.
struct ListedRows {
  std::int64_t batch, head, q_block;
  int begin, end, step;           ///< rows of the head are `step` apart
  std::int64_t first_row, group;  ///< row i is one of query (first_row + i) / group
  std::int64_t origin, keys;      ///< the tile's first key, a multiple of a word's keys; and its keys, likewise
  std::uint32_t* words;           ///< [row][row_words]
  std::int64_t row_words;
};

/// Sets the bits of listed keys in `words`: the first key in the lowest bit. Numbers of no block set none. Returns whether it sets any.
bool add_listed(const BlockLists& lists, const BlockArgs& args, const ListedRows& rows);

/// Words of a row's bits in a key tile.
inline std::int64_t listed_words(const auto& setup) { return (setup.tuning.kv_tile + kKeysOfWord - 1) / kKeysOfWord; }

struct Item;

/// Finds the listed keys of the tile at `origin` for each row of the item, in scratch.listed. Returns whether some row sees some key.
bool find_listed(const Item& item, std::int64_t origin);

}  // namespace fovea::cpu
