// SPDX-License-Identifier: Apache-2.0
#include "op/common/band.hpp"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <vector>

namespace fovea::detail {
namespace {

__extension__ using Wide = __int128;  // holds every sum of two bounds

bool sees(Band band, std::int64_t i, std::int64_t j) { return band.low <= j - i && j - i <= band.high; }

/// Every small problem: no visible key missed, no masked key in a full tile, no full tile treated as an edge.
TEST(Band, KvTilesVisitExactlyWhatIsVisible) {
  long cases = 0;
  for (int seq_q = 1; seq_q <= 9; ++seq_q) {
    for (int seq_k = 0; seq_k <= 9; ++seq_k) {
      for (int low = -11; low <= 11; ++low) {
        for (int high = -11; high <= 11; ++high) {
          const Band band{low, high};
          for (int q_tile = 1; q_tile <= 5; ++q_tile) {
            for (int k_tile = 1; k_tile <= 5; ++k_tile) {
              for (int q_begin = 0; q_begin < seq_q; q_begin += q_tile, ++cases) {
                const int q_end = std::min(q_begin + q_tile, seq_q);
                const KvTiles got = kv_tiles(band, q_begin, q_end, seq_k, k_tile);
                for (int tile = 0; tile * k_tile < seq_k + 2 * k_tile; ++tile) {
                  bool some = false, every = true;
                  for (int i = q_begin; i < q_end; ++i) {
                    for (int j = tile * k_tile; j < (tile + 1) * k_tile; ++j) {
                      const bool visible = j < seq_k && sees(band, i, j);
                      some |= visible;
                      every &= visible;
                    }
                  }
                  const bool visited = got.first <= tile && tile < got.last;
                  const bool full = got.full_first <= tile && tile < got.full_last;
                  ASSERT_FALSE((some && !visited) || (full && !every) || (visited && every && !full))
                      << "seq " << seq_q << " x " << seq_k << ", tiles " << q_tile << " x " << k_tile << ", band [" << low << ", " << high
                      << "], q " << q_begin << ", tile " << tile;
                }
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(cases, 1000000);
}

TEST(Band, RowRangesAndPairsAgreeWithThePredicate) {
  for (int seq_q = 1; seq_q <= 6; ++seq_q) {
    for (int seq_k = 0; seq_k <= 6; ++seq_k) {
      for (int low = -8; low <= 8; ++low) {
        for (int high = -8; high <= 8; ++high) {
          const Band band{low, high};
          std::int64_t pairs = 0;
          for (int i = 0; i < seq_q; ++i) {
            const KeyRange keys = keys_seen_by(band, i, seq_k);
            for (int j = 0; j < seq_k; ++j) {
              ASSERT_EQ(keys.begin <= j && j < keys.end, sees(band, i, j)) << low << " " << high << " row " << i << " key " << j;
              pairs += sees(band, i, j) ? 1 : 0;
            }
          }
          ASSERT_EQ(visible_pairs(band, seq_q, seq_k), pairs);
        }
      }
    }
  }
}

/// The band of a mask keeps the definition `-left <= j - (i + offset) <= right`, for bounds near overflow too.
TEST(Band, MakeBandKeepsTheDefinition) {
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  const std::int64_t bounds[] = {kUnbounded, kUnbounded - 1, kMin, kMin + 1, -5, -1, 0, 1, 2, 100};
  for (const std::int64_t left : bounds) {
    for (const std::int64_t right : bounds) {
      for (const Anchor anchor : {Anchor::top_left, Anchor::bottom_right}) {
        for (int seq_q = 1; seq_q <= 4; ++seq_q) {
          for (int seq_k = 0; seq_k <= 5; ++seq_k) {
            const Band band = make_band({left, right, anchor}, seq_q, seq_k);
            const Wide offset = anchor == Anchor::bottom_right ? seq_k - seq_q : 0;
            for (int i = 0; i < seq_q; ++i) {
              for (int j = 0; j < seq_k; ++j) {
                const Wide distance = j - (i + offset);
                const bool want = distance >= -static_cast<Wide>(left) && distance <= right;
                ASSERT_EQ(sees(band, i, j), want) << "left " << left << " right " << right << " i " << i << " j " << j;
              }
            }
          }
        }
      }
    }
  }
}

/// The narrow statement of the rule says the same as the wide one, for every token range of a sequence.
void compare_narrow(int log2_tile, const BandMask& mask, int seq_q, int seq_k, const std::array<int, 2>& tokens) {
  const Band band = make_band(mask, seq_q, seq_k);
  const NarrowBand narrow(NarrowMask(mask), seq_q, seq_k);
  const KeyRange keys = keys_seen_by_some(band, tokens[0], tokens[1], seq_k);
  const KvTiles tiles = kv_tiles(band, tokens[0], tokens[1], seq_k, 1 << log2_tile);
  const NarrowTiles got = narrow.tiles(log2_tile, tokens[0], tokens[1]);
  const std::array<std::int64_t, 8> want{band.low,    band.high,        keys.begin,      keys.end,
                                         tiles.first, tiles.full_first, tiles.full_last, tiles.last};
  const std::array<std::int64_t, 8> have{narrow.low, narrow.high, got.begin, got.end, got.first, got.full_first, got.full_last, got.last};
  ASSERT_EQ(have, want) << "left " << mask.left << ", right " << mask.right << ", seq " << seq_q << " x " << seq_k << ", tokens "
                        << tokens[0] << " to " << tokens[1];
}

TEST(NarrowBand, SaysWhatTheWideOneSays) {
  constexpr std::array kFar{-kUnbounded, std::int64_t{-1} << 40, std::int64_t{1} << 40, kUnbounded};
  std::vector<std::int64_t> bounds(kFar.begin(), kFar.end());
  for (int bound = -8; bound <= 8; ++bound) bounds.push_back(bound);
  for (const std::int64_t left : bounds) {
    for (const std::int64_t right : bounds) {
      for (const Anchor anchor : {Anchor::top_left, Anchor::bottom_right}) {
        for (int seq_q = 1; seq_q <= 6; ++seq_q) {
          for (int seq_k = 0; seq_k <= 9; ++seq_k) {
            for (int begin = 0; begin < seq_q; ++begin) {
              for (int end = begin + 1; end <= seq_q; ++end) compare_narrow(2, {left, right, anchor}, seq_q, seq_k, {begin, end});
            }
          }
        }
      }
    }
  }
}

/// Two ranges of rows, side by side, miss no key tile that the rows see together. Two warpgroups share copies of such tiles, and a tile
/// that neither waits for would be overwritten too soon.
void expect_no_tile_missed(const NarrowBand& band, int log2_tile, int seq_q) {
  const NarrowTiles all = band.tiles(log2_tile, 0, seq_q);
  for (int middle = 1; middle < seq_q; ++middle) {
    const NarrowTiles before = band.tiles(log2_tile, 0, middle), after = band.tiles(log2_tile, middle, seq_q);
    for (int tile = all.first; tile < all.last; ++tile) {
      const auto holds = [&](const NarrowTiles& some) { return tile >= some.first && tile < some.last; };
      ASSERT_TRUE(holds(before) || holds(after)) << "tile " << tile << ", row " << middle << " of " << seq_q;
    }
  }
}

TEST(NarrowBand, PartsOfAQueryTileMissNoKeyTile) {
  for (int left = -12; left <= 12; ++left) {
    for (int right = -12; right <= 12; ++right) {
      for (const Anchor anchor : {Anchor::top_left, Anchor::bottom_right}) {
        for (int seq_q = 1; seq_q <= 7; ++seq_q) {
          for (int seq_k = 0; seq_k <= 11; ++seq_k) {
            const NarrowBand band(NarrowMask(BandMask{left, right, anchor}), seq_q, seq_k);
            for (const int log2_tile : {0, 1, 2}) expect_no_tile_missed(band, log2_tile, seq_q);
          }
        }
      }
    }
  }
}

TEST(NarrowBand, HoldsTheLargestSequences) {
  constexpr int kMost = kNarrowLimit - 1;
  for (const std::int64_t left : {std::int64_t{0}, std::int64_t{kMost}, std::int64_t{kNarrowLimit}, kUnbounded, -kUnbounded}) {
    for (const std::int64_t right : {std::int64_t{0}, std::int64_t{kMost}, std::int64_t{kNarrowLimit}, kUnbounded, -kUnbounded}) {
      for (const Anchor anchor : {Anchor::top_left, Anchor::bottom_right}) {
        for (const int seq_q : {1, kMost}) {
          for (const int seq_k : {0, 1, kMost}) {
            compare_narrow(6, {left, right, anchor}, seq_q, seq_k, {0, 1});
            compare_narrow(6, {left, right, anchor}, seq_q, seq_k, {seq_q - 1, seq_q});
            compare_narrow(6, {left, right, anchor}, seq_q, seq_k, {0, seq_q});
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace fovea::detail
