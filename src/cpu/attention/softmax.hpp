// SPDX-License-Identifier: Apache-2.0
/// The online softmax (Milakov and Gimelshein 2018) on one tile of scores, in powers of two.
#pragma once

#include "cpu/attention/arithmetic.hpp"
#include "cpu/kernels.hpp"
#include "cpu/math.hpp"

namespace fovea::cpu::FOVEA_ISA {

inline constexpr float kHidden = -__builtin_inff();

FOVEA_INLINE void cap(float* scores, const SoftmaxTile& tile) {
  const SoftCap by = tile.soft_cap;
  for (int key = tile.begin; key < tile.end; key += kLanes) store(F32{}, scores + key, capped(load(F32{}, scores + key), by).score);
}

FOVEA_INLINE void add_bias(float* scores, const float* bias, const SoftmaxTile& tile) {
  for (int key = tile.begin; key < tile.end; key += kLanes)
    store(F32{}, scores + key, add(load(F32{}, scores + key), load(F32{}, bias + key)));
}

/// Masked scores are replaced, never added to. Whatever an absent or invisible key held, NaN too, is gone.
FOVEA_INLINE void hide(float* scores, int begin, int end, KeySpan visible) {
  const int low = visible.begin < end ? visible.begin : end;
  for (int key = begin; key < low; ++key) scores[key] = kHidden;
  for (int key = visible.end > low ? visible.end : low; key < end; ++key) scores[key] = kHidden;
}

/// The same of keys that the packed mask hides.
FOVEA_INLINE void hide(float* scores, KeySpan visible, const KeyBits& bits) {
  for (int key = visible.begin; key < visible.end; ++key) {
    if (!bits.shows(key)) scores[key] = kHidden;
  }
}

/// NaN scores do not count for the maximum. They reach the sum as weights.
FOVEA_INLINE float largest(const float* scores, int begin, int end) {
  Vec even = splat(kHidden), odd = even;
  int key = begin;
  for (; key + 2 * kLanes <= end; key += 2 * kLanes) {
    even = max(load(F32{}, scores + key), even);
    odd = max(load(F32{}, scores + key + kLanes), odd);
  }
  if (key < end) even = max(load(F32{}, scores + key), even);
  return reduce_max(max(even, odd));
}

/// Turns one row of scores into weights and returns their sums by lane. The maximum is subtracted before the factor is applied. A fused
/// multiply-add of a large score and a rounded product would leave half an ulp of the score in the exponent.
template <class Math>
FOVEA_INLINE Vec weigh(const float* scores, typename Math::Operand* p, const SoftmaxTile& tile, float maximum) {
  const Vec factor = splat(tile.factor), most = splat(maximum);
  Vec sum = zero();
  for (int key = tile.begin; key < tile.end; key += Math::kPair * kLanes) {
    Vec weight[Math::kPair];
#pragma GCC unroll 2
    for (int i = 0; i < Math::kPair; ++i) {
      weight[i] = exp2<Math::kPair == 2>(mul(sub(load(F32{}, scores + key + i * kLanes), most), factor));
      sum = add(sum, weight[i]);
    }
    Math::store_weights(p + key, weight);
  }
  return sum;
}

/// Computes the new row maximum and the rescale factor of the old sums, for all rows at once. The maximum is over all tiles so far, so no
/// later, lower tile can overflow. It is -inf while a row has seen no key, and the shift is then 0: -inf - 0 gives a weight of zero, -inf -
/// -inf would be NaN.
FOVEA_INLINE void raise_maximum(const SoftmaxTile& tile, const float* most, float* shift) {
  for (int row = 0; row < tile.rows; ++row) {
    const float before = tile.maximum[row], here = most[row], now = before > here ? before : here;
    shift[row] = now == kHidden ? 0.0f : now;
    tile.maximum[row] = now;
    tile.rescale[row] = (before - shift[row]) * tile.factor;
  }
  for (int row = 0; row < tile.rows; row += kLanes) {
    float some[kLanes] = {};
    const int count = tile.rows - row < kLanes ? tile.rows - row : kLanes;
    for (int i = 0; i < count; ++i) some[i] = tile.rescale[row + i];
    store(F32{}, some, exp2(load(F32{}, some)));
    for (int i = 0; i < count; ++i) tile.rescale[row + i] = some[i];
  }
}

/// Makes one pass over all rows after another, instead of one row after another. A row's weights then need not wait for the reduction of
/// its maximum.
template <class Math>
static void softmax(const SoftmaxTile& tile) {
  float most[kMaxSoftmaxRows], shift[kMaxSoftmaxRows];
  for (int row = 0; row < tile.rows; ++row) {
    float* scores = tile.scores + row * tile.score_stride;
    if (tile.soft_cap.cap != 0) cap(scores, tile);
    if (tile.bias != nullptr) add_bias(scores, tile.bias + row * tile.score_stride, tile);
    if (tile.visible != nullptr) hide(scores, tile.begin, tile.end, tile.visible[row]);
    if (tile.shown != nullptr) hide(scores, tile.visible[row], tile.shown[row]);
    most[row] = largest(scores, tile.begin, tile.end);
  }
  raise_maximum(tile, most, shift);
  for (int row = 0; row < tile.rows; ++row) {
    auto* p = static_cast<typename Math::Operand*>(tile.p) + row * tile.p_stride;
    const float sum = reduce_add(weigh<Math>(tile.scores + row * tile.score_stride, p, tile, shift[row]));
    tile.sum[row] = tile.sum[row] * tile.rescale[row] + sum;
  }
}

}  // namespace fovea::cpu::FOVEA_ISA
