// SPDX-License-Identifier: Apache-2.0
/// Which queries of a query tile see which keys of a key tile: by the band, by the lists of a block mask, and by
/// the bits of a packed mask.
#pragma once

#include "cpu/attention_backward/head.hpp"

namespace fovea::cpu {

/// A key tile against a query tile.
struct Pair {
  std::int64_t key = 0, query = 0;  // first ones
  int keys = 0, queries = 0;
  bool masked = false;      // set if some query does not see some key, a tile is not whole, or an element is not finite
  bool hidden = false;      // set if lists or bits hide some of it: scratch.shown has what they show
  bool finite_keys = true;  // every element of K
  Finite finite{};          // every element of Q and dO
};

/// Finds what the lists and the bits show of the pair, and sets `hidden`. False where they show nothing. True without either.
bool find_shown(const Head& head, Pair& pair);

/// Whether the lists and the bits show the key to the query, in a pair that is `hidden`.
inline bool is_shown(const Head& head, int query, int key) {
  const std::uint32_t* words = head.scratch.shown + query * listed_words(head.setup);
  return ((words[key / kKeysOfWord] >> (key % kKeysOfWord)) & 1) != 0;
}

/// The shortest range that holds the queries that see the key.
KeySpan queries_of(const Head& head, const Pair& pair, int key);

/// The same of the keys that the query sees; empty for a row that was left out.
KeySpan keys_of(const Head& head, const Pair& pair, int query);

/// f(run) for each run within `seen` that `shows`.
template <class Shows, class F>
void for_runs(KeySpan seen, Shows&& shows, F&& f) {
  for (int at = seen.begin; at < seen.end;) {
    if (!shows(at)) {
      ++at;
      continue;
    }
    KeySpan run{at, at + 1};
    while (run.end < seen.end && shows(run.end)) ++run.end;
    f(run);
    at = run.end;
  }
}

/// f(run) for each run of queries that see the key.
template <class F>
void for_queries(const Head& head, const Pair& pair, int key, F&& f) {
  for_runs(
      head.scratch.visible[key], [&](int query) { return !pair.hidden || is_shown(head, query, key); }, f);
}

/// f(run) for each run of keys that the query sees.
template <class F>
void for_keys(const Head& head, const Pair& pair, int query, F&& f) {
  for_runs(
      keys_of(head, pair, query), [&](int key) { return !pair.hidden || is_shown(head, query, key); }, f);
}

}  // namespace fovea::cpu
