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

/// Sets the bits of listed pairs. Returns whether there are any.
bool add_lists(const Head& head, const Pair& pair) {
  const BlockLists& lists = *head.setup.forward.blocks;
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
                  .words = head.scratch.shown,
                  .row_words = listed_words(head.setup)};
  bool some = false;
  for (; rows.begin < pair.queries; rows.begin = rows.end, ++rows.q_block) {
    const std::int64_t end = (rows.q_block + 1) * lists.block_q - pair.query;
    rows.end = static_cast<int>(std::min<std::int64_t>(end, pair.queries));
    some = add_listed(lists, head.call.forward.blocks, rows) || some;
  }
  return some;
}

/// The keys [key, key + 32) that a packed mask shows to a row, the first in the lowest bit. Keys without a bit are among them.
std::uint32_t shown_keys(const detail::SequenceBits& mask, std::int64_t row, std::int64_t key) {
  constexpr std::int64_t kBytes = 5;  // have the bits of a word, wherever they begin
  const std::int64_t bit = mask.first_bit + row * mask.row_bits + key - mask.first_key, byte = bit / 8;
  if (key >= mask.first_key && bit >= 0 && byte + kBytes <= mask.bits / 8) {
    std::uint64_t word = 0;
    for (std::int64_t i = 0; i < kBytes; ++i) word |= std::uint64_t{mask.bytes[byte + i]} << (8 * i);
    return static_cast<std::uint32_t>(word >> (bit % 8));
  }
  std::uint32_t word = 0;
  for (std::int64_t i = 0; i < kKeysOfWord; ++i) {
    if (key + i < mask.first_key || mask.shows(row, key + i)) word |= std::uint32_t{1} << i;
  }
  return word;
}

}  // namespace

bool find_shown(const Head& head, Pair& pair) {
  pair.hidden = false;
  const Setup& forward = head.setup.forward;
  const bool packed = forward.core.packed_mask.has_value();
  if (!forward.blocks && !packed) return true;
  const std::int64_t row_words = listed_words(head.setup);
  std::uint32_t* words = head.scratch.shown;
  std::fill_n(words, pair.queries * row_words, forward.blocks ? 0u : ~0u);
  if (forward.blocks && !add_lists(head, pair)) return false;
  const detail::SequenceBits mask = packed ? bits_of(forward, head.call.forward, head.sequence) : detail::SequenceBits{};
  std::uint32_t some = 0, others = 0;
  for (std::int64_t query = 0; query < pair.queries; ++query, words += row_words) {
    for (int key = 0; key < pair.keys; key += kKeysOfWord) {
      const std::uint32_t present = ~0u >> (kKeysOfWord - std::min(kKeysOfWord, pair.keys - key));
      std::uint32_t& word = words[key / kKeysOfWord];
      if (packed) word &= shown_keys(mask, pair.query + query, pair.key + key);
      some |= word & present;
      others |= ~word & present;
    }
  }
  pair.hidden = others != 0;
  return some != 0;
}

KeySpan queries_of(const Head& head, const Pair& pair, int key) {
  const std::int64_t distance = pair.key + key - pair.query;
  const KeySpan seen = clamped(distance - head.sequence.band.high, distance - head.sequence.band.low + 1, pair.queries);
  return pair.hidden ? shortened(seen, [&](int query) { return is_shown(head, query, key); }) : seen;
}

KeySpan keys_of(const Head& head, const Pair& pair, int query) {
  if (head.scratch.q_rows[pair.query + query] == zero_row()) return {};
  const std::int64_t distance = pair.query + query - pair.key;
  const KeySpan seen = clamped(distance + head.sequence.band.low, distance + head.sequence.band.high + 1, pair.keys);
  return pair.hidden ? shortened(seen, [&](int key) { return is_shown(head, query, key); }) : seen;
}

}  // namespace fovea::cpu
