// SPDX-License-Identifier: Apache-2.0
/// The order of the quantisers' work items: each once, and none before what it waits for.
#include "gpu/cuda/portable/quantizers/item_order.hpp"

#include <gtest/gtest.h>

#include <map>
#include <tuple>
#include <vector>

namespace fovea::gpu::portable::quantizers {
namespace {

using Key = std::tuple<Step, int, int>;

std::vector<Key> wanted(const ItemOrder& order) {
  std::vector<Key> all;
  const auto add = [&](Step step, int pieces, int columns) {
    for (int piece = 0; piece < pieces; ++piece)
      for (int column = 0; column < columns; ++column) all.emplace_back(step, piece, column);
  };
  add(Step::look_at_k, order.k_slices, order.columns);
  add(Step::look_at_v, order.v_slices, order.columns);
  add(Step::quantize_q, order.q_pieces, order.columns * order.q_per_column);
  add(Step::quantize_k, order.k_pieces, order.columns);
  add(Step::quantize_v, order.v_pieces, order.columns);
  return all;
}

/// When each item comes.
std::map<Key, int> places(const ItemOrder& order) {
  std::map<Key, int> found;
  for (int i = 0; i < order.size(); ++i) {
    const Item item = order[i];
    if (item.step == Step::none) continue;
    EXPECT_TRUE(found.emplace(Key{item.step, item.piece, item.column}, i).second) << "item " << i << " comes twice";
  }
  return found;
}

void expect_looks_first(const ItemOrder& order, const std::map<Key, int>& found) {
  for (const auto& [key, at] : found) {
    const auto [step, piece, column] = key;
    if (step == Step::look_at_k || step == Step::look_at_v) continue;
    const int of = step == Step::quantize_q ? column / order.q_per_column : column;
    for (int slice = 0; slice < order.k_slices; ++slice) EXPECT_LT(found.at({Step::look_at_k, slice, of}), at);
    for (int slice = 0; slice < order.v_slices; ++slice) EXPECT_LT(found.at({Step::look_at_v, slice, of}), at);
  }
}

TEST(ItemOrder, HasEachItemOnceAfterItsChannels) {
  for (const int columns : {0, 1, 2, 5, 6})
    for (const int unit : {1, 2, 4, 6})
      for (const auto& [k_slices, v_slices] : {std::pair{0, 0}, {2, 0}, {0, 3}, {2, 2}})
        for (const auto& [q_pieces, kv_pieces] : {std::pair{0, 3}, {2, 0}, {3, 4}}) {
          const ItemOrder order{.columns = columns,
                                .unit = unit,
                                .q_per_column = 3,
                                .k_slices = k_slices,
                                .v_slices = v_slices,
                                .q_pieces = q_pieces,
                                .k_pieces = kv_pieces,
                                .v_pieces = kv_pieces};
          const std::map<Key, int> found = places(order);
          const std::vector<Key> all = wanted(order);
          EXPECT_EQ(found.size(), all.size());
          for (const Key& key : all) EXPECT_TRUE(found.contains(key));
          expect_looks_first(order, found);
        }
}

/// A unit's tokens are quantised while the next unit is looked at, not before all are.
TEST(ItemOrder, LooksOneUnitAhead) {
  const ItemOrder order{.columns = 4, .unit = 1, .k_slices = 1, .k_pieces = 2};
  const Step look = Step::look_at_k, code = Step::quantize_k;
  std::vector<std::pair<Step, int>> got;
  for (int i = 0; i < order.size(); ++i) got.emplace_back(order[i].step, order[i].column);
  EXPECT_EQ(got, (std::vector<std::pair<Step, int>>{{look, 0},
                                                    {look, 1},
                                                    {code, 0},
                                                    {code, 0},
                                                    {look, 2},
                                                    {code, 1},
                                                    {code, 1},
                                                    {look, 3},
                                                    {code, 2},
                                                    {code, 2},
                                                    {code, 3},
                                                    {code, 3}}));
}

}  // namespace
}  // namespace fovea::gpu::portable::quantizers
