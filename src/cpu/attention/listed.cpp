// SPDX-License-Identifier: Apache-2.0
#include "cpu/attention/listed.hpp"

#include <algorithm>

#include "cpu/attention/item.hpp"

namespace fovea::cpu {
namespace {

/// Offset of [batch, head, q_block, last], where an extent of 1 stands for all.
std::int64_t offset(const TensorDesc& desc, std::int64_t batch, std::int64_t head, std::int64_t q_block, std::int64_t last = 0) {
  const std::int64_t first = (desc.shape[0] == 1 ? 0 : batch * desc.strides[0]) + (desc.shape[1] == 1 ? 0 : head * desc.strides[1]);
  return first + q_block * desc.strides[2] + (desc.rank == 4 ? last : 0);
}

/// A list of one kind of blocks.
struct List {
  const std::optional<TensorDesc>& indices;
  const TensorDesc& counts;
  const std::int32_t *counts_data, *data;
};

/// f(slot, first key) for each listed block that reaches into the tile.
template <class F>
void for_blocks(const List& list, const ListedRows& to, std::int64_t block_k, F&& f) {
  if (!list.indices || list.indices->shape[3] == 0) return;
  const std::int64_t named = list.counts_data[offset(list.counts, to.batch, to.head, to.q_block)];
  const std::int64_t count = std::clamp<std::int64_t>(named, 0, list.indices->shape[3]);
  const std::int32_t* numbers = list.data + offset(*list.indices, to.batch, to.head, to.q_block);
  for (std::int64_t slot = 0; slot < count; ++slot) {
    const std::int64_t begin = numbers[slot] * block_k;
    if (begin >= 0 && begin < to.origin + to.keys && begin + block_k > to.origin) f(slot, begin);
  }
}

}  // namespace

bool add_listed(const BlockLists& lists, const BlockArgs& args, const ListedRows& to) {
  bool some = false;
  const auto words_of = [&](std::int64_t begin, auto&& word_of) {
    const std::int64_t first = std::max(begin, to.origin), last = std::min(begin + lists.block_k, to.origin + to.keys);
    for (int row = to.begin; row < to.end; row += to.step) {
      for (std::int64_t key = first; key < last; key += kKeysOfWord) {
        const std::uint32_t word = word_of(row, key - begin);
        to.words[row * to.row_words + (key - to.origin) / kKeysOfWord] |= word;
        some = some || word != 0;
      }
    }
  };
  for_blocks({lists.full, lists.full_counts, args.full_counts, args.full}, to, lists.block_k,
             [&](std::int64_t, std::int64_t begin) { words_of(begin, [](int, std::int64_t) { return ~std::uint32_t{0}; }); });
  const std::int64_t block_words = lists.block_k / kKeysOfWord;
  for_blocks({lists.partial, lists.partial_counts, args.partial_counts, args.partial}, to, lists.block_k,
             [&](std::int64_t slot, std::int64_t begin) {
               const std::int32_t* bits = args.bits + offset(lists.bits, to.batch, to.head, to.q_block, slot * lists.block_q * block_words);
               words_of(begin, [&](int row, std::int64_t key) {
                 const std::int64_t inside = (to.first_row + row) / to.group - to.q_block * lists.block_q;
                 return static_cast<std::uint32_t>(bits[inside * block_words + key / kKeysOfWord]);
               });
             });
  return some;
}

bool find_listed(const Item& item, std::int64_t origin) {
  const BlockLists& lists = *item.setup.blocks;
  const std::int64_t row_words = listed_words(item.setup);
  std::uint32_t* words = item.scratch.listed;
  const auto group = static_cast<int>(item.setup.core.group());
  std::fill_n(words, item.rows * row_words, 0u);
  bool some = false;
  for (int begin = 0; begin < item.rows;) {
    const std::int64_t q_block = item.query_of(begin) / lists.block_q;
    int end = begin + 1;
    while (end < item.rows && item.query_of(end) / lists.block_q == q_block) ++end;
    for (int row = begin; row < std::min(begin + group, end); ++row) {
      const std::int64_t head = item.kv_head * group + (item.entry.row_begin + row) % group;
      const ListedRows rows{.batch = item.sequence.batch,
                            .head = head,
                            .q_block = q_block,
                            .begin = row,
                            .end = end,
                            .step = group,
                            .first_row = item.entry.row_begin,
                            .group = group,
                            .origin = origin,
                            .keys = item.setup.tuning.kv_tile,
                            .words = words,
                            .row_words = row_words};
      some = add_listed(lists, item.call.blocks, rows) || some;
    }
    begin = end;
  }
  return some;
}

}  // namespace fovea::cpu
