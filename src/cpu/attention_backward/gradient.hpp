// SPDX-License-Identifier: Apache-2.0
/// The elementwise step of the backward pass on a transposed tile, (key, query). Vectors run over queries.
#pragma once

#include "cpu/attention/arithmetic.hpp"
#include "cpu/kernels.hpp"
#include "cpu/math.hpp"

namespace fovea::cpu::FOVEA_ISA {

/// One vector: q.k becomes p, and dout.v becomes ds / scale. The score is rounded as the lse was before they are subtracted, and no weight
/// exceeds one. Otherwise half an ulp of a large score would be an exponent of hundreds.
template <bool kCapped, bool kBiased>
FOVEA_INLINE void differentiate(const GradientTile& tile, int query, std::int64_t at, Vec& score, Vec& gradient) {
  constexpr float kLowest = -0x1.fffffep127f;
  const Capped by_cap = kCapped ? capped(score, tile.soft_cap) : Capped{score, score};
  const Vec negative_lse = load(F32{}, tile.shift + query);
  Vec natural = mul(by_cap.score, splat(tile.factor));
  if (kBiased) natural = add(natural, load(F32{}, tile.bias + at));
  const Vec exponent = min(zero(), add(natural, negative_lse));  // this order passes NaN on
  const Vec p = exp2(mul(exponent, splat(1.44269504f)));
  const Vec lowest = splat(kLowest);  // selected, not multiplied: a row without keys is zero whatever its operands were
  Vec ds = mul(p, sub(gradient, load(F32{}, tile.delta + query)));
  if (kBiased && tile.dbias != nullptr) store(F32{}, tile.dbias + at, select_less(negative_lse, lowest, zero(), ds));
  if (kCapped) ds = mul(ds, sub(splat(1.0f), mul(by_cap.tanh, by_cap.tanh)));
  score = select_less(negative_lse, lowest, zero(), p);
  gradient = select_less(negative_lse, lowest, zero(), ds);
}

template <class Math, bool kCapped, bool kBiased>
FOVEA_INLINE void differentiate_row(const GradientTile& tile, int row, KeySpan seen) {
  constexpr int kStep = Math::kPair * kLanes;
  using Operand = typename Math::Operand;
  const std::int64_t at = row * tile.stride;
  const float *scores = tile.scores + at, *gradients = tile.gradients + at;
  Operand *p = static_cast<Operand*>(tile.p) + at, *ds = static_cast<Operand*>(tile.ds) + at;
  for (int column = seen.begin / kStep * kStep; column < seen.end; column += kStep) {
    Vec weight[Math::kPair], slope[Math::kPair];
#pragma GCC unroll 2
    for (int i = 0; i < Math::kPair; ++i) {
      const int here = column + i * kLanes;
      weight[i] = load(F32{}, scores + here);
      slope[i] = load(F32{}, gradients + here);
      differentiate<kCapped, kBiased>(tile, here, at + here, weight[i], slope[i]);
    }
    Math::store_weights(p + column, weight);
    Math::store_weights(ds + column, slope);
  }
  const auto clear = [&](int begin, int end) {
    for (int column = begin; column < end; ++column) p[column] = ds[column] = Operand{};
  };
  clear(tile.begin, seen.begin);
  clear(seen.end, tile.end);
}

/// Invisible entries are replaced by zeros, never multiplied by them.
template <class Math>
static void gradient(const GradientTile& tile) {
  for (int row = 0; row < tile.rows; ++row) {
    KeySpan seen{tile.begin, tile.end};
    if (tile.visible != nullptr) {
      const KeySpan some = tile.visible[row];
      if (some.begin > seen.begin) seen.begin = some.begin < seen.end ? some.begin : seen.end;
      if (some.end < seen.end) seen.end = some.end > seen.begin ? some.end : seen.begin;
      if (seen.begin >= seen.end) seen = {tile.begin, tile.begin};
    }
    if (tile.bias != nullptr) {
      tile.soft_cap.cap != 0 ? differentiate_row<Math, true, true>(tile, row, seen) : differentiate_row<Math, false, true>(tile, row, seen);
    } else {
      tile.soft_cap.cap != 0 ? differentiate_row<Math, true, false>(tile, row, seen)
                             : differentiate_row<Math, false, false>(tile, row, seen);
    }
  }
}

/// ds as (query, key) operands, eight keys at a time.
template <class Math>
static void transpose_gradient(const TransposeTile& tile) {
  using Operand = typename Math::Operand;
  for (int key = 0; key < tile.keys; key += 8) {
    const void* rows[8];
    for (int i = 0; i < 8; ++i) rows[i] = static_cast<const Operand*>(tile.ds) + (key + i) * tile.stride;
    for (int column = tile.begin; column < tile.end; column += Math::kTransposed) {
      Math::transpose_operands(rows, column, static_cast<Operand*>(tile.to) + column * tile.to_stride + key, tile.to_stride);
    }
  }
}

}  // namespace fovea::cpu::FOVEA_ISA
