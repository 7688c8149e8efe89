// SPDX-License-Identifier: Apache-2.0
#include "cpu/attention_backward/pair.hpp"

#include <algorithm>

namespace fovea::cpu {
namespace {

KeySpan clamped(std::int64_t begin, std::int64_t end, int size) {
  const auto clamp = [&](std::int64_t x) { return static_cast<int>(std::clamp<std::int64_t>(x, 0, size)); };
  return {clamp(begin), clamp(end)};
}

template <class Shows>
KeySpan shortened(KeySpan seen, Shows&& shows) {
  while (seen.begin < seen.end && !shows(seen.begin)) ++seen.begin;
  while (seen.begin < seen.end && !shows(seen.end - 1)) --seen.end;
  return seen;
}

}  // namespace

bool find_listed(const Head& head, Pair& pair) {
  pair.listed = false;
  if (!head.setup.forward.blocks) return true;
  const BlockLists& lists = *head.setup.forward.blocks;
  const std::int64_t row_words = listed_words(head.setup), words = pair.queries * row_words;
  std::uint32_t* listed = head.scratch.listed;
  std::fill_n(listed, words, 0u);
  ListedRows rows{.batch = head.sequence.batch,
                  .head = head.index,
                  .q_block = pair.query / lists.block_q,
                  .begin = 0,
                  .end = 0,
                  .step = 1,
                  .first_row = pair.query,
                  .group = 1,
                  .origin = pair.key,
                  .keys = head.setup.tuning.kv_tile,
                  .words = listed,
                  .row_words = row_words};
  bool some = false;
  for (; rows.begin < pair.queries; rows.begin = rows.end, ++rows.q_block) {
    const std::int64_t end = (rows.q_block + 1) * lists.block_q - pair.query;
    rows.end = static_cast<int>(std::min<std::int64_t>(end, pair.queries));
    some = add_listed(lists, head.call.forward.blocks, rows) || some;
  }
  pair.listed = !std::all_of(listed, listed + words, [](std::uint32_t word) { return word == ~0u; });
  return some;
}

KeySpan queries_of(const Head& head, const Pair& pair, int key) {
  const std::int64_t distance = pair.key + key - pair.query;
  const KeySpan seen = clamped(distance - head.sequence.band.high, distance - head.sequence.band.low + 1, pair.queries);
  return pair.listed ? shortened(seen, [&](int query) { return is_listed(head, query, key); }) : seen;
}

KeySpan keys_of(const Head& head, const Pair& pair, int query) {
  if (head.scratch.q_rows[pair.query + query] == zero_row()) return {};
  const std::int64_t distance = pair.query + query - pair.key;
  const KeySpan seen = clamped(distance + head.sequence.band.low, distance + head.sequence.band.high + 1, pair.keys);
  return pair.listed ? shortened(seen, [&](int key) { return is_listed(head, query, key); }) : seen;
}

}  // namespace fovea::cpu
