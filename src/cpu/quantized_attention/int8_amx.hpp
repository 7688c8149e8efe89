// SPDX-License-Identifier: Apache-2.0
/// 8-bit attention on AMX tiles: int8 scores, and values as bf16. A step takes 32 rows and kStepKeys keys from scores to weighted
/// values, so that scores and weights are read soon after they were written.
#pragma once

#include "cpu/attention/gemm_amx.hpp"
#include "cpu/attention/pack.hpp"
#include "cpu/attention/softmax.hpp"
#include "cpu/isa/avx512vnni.hpp"

namespace fovea::cpu::FOVEA_ISA {

inline constexpr int kStepKeys = 256;  // from the begin of a key tile: no sum depends on which rows share a block
inline constexpr int kInt8Depth = 64;
inline constexpr float kLittleGrowth = 8;  // in the exponent of two

/// Products of signed bytes: quantised values are operands as they are.
struct Int8TileMath : Int8DotMath {
  using Operand = std::int8_t;
  FOVEA_INLINE Half load_row(I8, const void* p) { return {_mm256_loadu_si256(static_cast<const __m256i*>(p))}; }
  FOVEA_INLINE void store_operands(Operand* p, Half a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v); }
  FOVEA_INLINE Half negated(Half a) { return {_mm256_sub_epi8(_mm256_setzero_si256(), a.v)}; }
  template <class S>
  FOVEA_INLINE void transpose(const void* const* rows, int d, Operand* to) {
    Int8DotMath::transpose<S>(rows, d, reinterpret_cast<std::uint8_t*>(to));
  }
};

/// Accumulators += products of kInt8Depth channels of rows of q and of a panel of keys.
template <bool kBoth>
FOVEA_INLINE void multiply_int8_tiles(const std::int8_t* q, std::int64_t q_stride, const std::int8_t* keys) {
  constexpr int kFours = 4 * kPanel;  // bytes
  tile_load<6>(keys, kFours);
  tile_load<7>(keys + kFours / 2, kFours);
  tile_load<4>(q, q_stride);
  tile_multiply_int8<0, 4, 6>();
  tile_multiply_int8<1, 4, 7>();
  if constexpr (kBoth) {
    tile_load<5>(q + kTileRows * q_stride, q_stride);
    tile_multiply_int8<2, 5, 6>();
    tile_multiply_int8<3, 5, 7>();
  }
}

/// Integer scores of a block and one panel of keys.
template <bool kBoth>
FOVEA_INLINE void int8_score_tiles(const ScoreTile& tile, int row, int key, float* scores) {
  const auto* q = static_cast<const std::int8_t*>(tile.q) + row * tile.q_stride;
  const auto* keys = static_cast<const std::int8_t*>(tile.keys) + static_cast<std::int64_t>(key) * tile.head_dim;
  zero_tiles<kBoth>();
  for (int d = 0; d < tile.head_dim; d += kInt8Depth) multiply_int8_tiles<kBoth>(q + d, tile.q_stride, keys + d * kPanel);
  store_tiles<kBoth>(scores, tile.score_stride);
}

FOVEA_INLINE Vec integers(const float* scores) { return {_mm512_cvtepi32_ps(_mm512_loadu_si512(scores))}; }

static void int8_tile_scores(const ScoreTile& tile) {
  for (int i = 0; i < tile.block_count; ++i) {
    const RowBlock& block = tile.blocks[i];
    const int first = block.key_begin / kPanel * kPanel;
    for (int key = first; key < block.key_end; key += kPanel) {
      float* scores = tile.scores + block.row * tile.score_stride + key;
      block.rows > kTileRows ? int8_score_tiles<true>(tile, block.row, key, scores) : int8_score_tiles<false>(tile, block.row, key, scores);
    }
    for (int row = block.row; row < block.row + block.rows; ++row) {
      float* scores = tile.scores + row * tile.score_stride;
      const Vec by = splat(tile.q_scales[row]);
      for (int key = first; key < block.key_end; key += kLanes) {
        store(F32{}, scores + key, mul(mul(integers(scores + key), load(F32{}, tile.k_scales + key)), by));
      }
    }
  }
}

/// One step: the rows of a block, and keys [begin, begin + count) of the tile. Every step uses the first rows and columns of the scores.
/// Weights take the place of scores, from the begin of each row.
struct Int8Step {
  int row = 0, rows = 0, begin = 0, count = 0;
};

/// For each of 32 rows a number by lane.
struct alignas(64) Lanes {
  float row[kMaxSoftmaxRows][kLanes];
};

/// Combines the lanes of sixteen rows: element i of the result is of row i. Sixteen rows share the shuffles.
template <class Combine>
FOVEA_INLINE Vec across_lanes(const float (*rows)[kLanes], const Combine& combine) {
  const auto halves = [&](__m512 a, __m512 b) {
    return combine(Vec{_mm512_shuffle_f32x4(a, b, 0x88)}, Vec{_mm512_shuffle_f32x4(a, b, 0xdd)}).v;
  };
  const auto pairs = [&](__m512 a, __m512 b) { return combine(Vec{_mm512_shuffle_ps(a, b, 0x88)}, Vec{_mm512_shuffle_ps(a, b, 0xdd)}).v; };
  __m512 quarters[4];  // quarter k of i: row 4 k + i
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const auto row = [&](int k) { return load(F32{}, rows[4 * k + i]).v; };
    quarters[i] = halves(halves(row(0), row(1)), halves(row(2), row(3)));
  }
  return {pairs(pairs(quarters[0], quarters[1]), pairs(quarters[2], quarters[3]))};
}

/// raise_maximum() of softmax.hpp for whole blocks. Returns the shift of each row. A maximum that grows by a few powers of two stays, so
/// that fewer accumulators are rescaled.
FOVEA_INLINE void raise_maxima(const SoftmaxTile& tile, const Lanes& most, float* shift) {
  for (int row = 0; row < tile.rows; row += kLanes) {
    const Vec before = load(F32{}, tile.maximum + row), lowest = splat(-0x1.fffffep127f);
    const Vec here = max(before, across_lanes(most.row + row, [](Vec a, Vec b) { return max(a, b); }));
    const Vec now = select_less(mul(sub(here, before), splat(tile.factor)), splat(kLittleGrowth), before, here);  // NaN: -inf - -inf
    const Vec by = select_less(now, lowest, zero(), now);
    store(F32{}, shift + row, by);
    store(F32{}, tile.maximum + row, now);
    store(F32{}, tile.rescale + row, exp2(mul(sub(before, by), splat(tile.factor))));
  }
}

FOVEA_INLINE void add_sums(const SoftmaxTile& tile, const Lanes& sums) {
  for (int row = 0; row < tile.rows; row += kLanes) {
    const Vec sum = across_lanes(sums.row + row, [](Vec a, Vec b) { return add(a, b); });
    store(F32{}, tile.sum + row, fma(load(F32{}, tile.sum + row), load(F32{}, tile.rescale + row), sum));
  }
}

/// The keys of a step that a row sees, as bits of 32 of them.
struct VisibleKeys {
  int begin = 0, end = kStepKeys;
  __mmask32 at(int key) const {
    const auto below = [&](int last) { return last <= key ? 0U : last >= key + 32 ? ~0U : (1U << (last - key)) - 1; };
    return below(end) & ~below(begin);
  }
};

/// One row of a step: its scale, what is subtracted from its scores, and the factor of the exponent.
struct Int8Row {
  float scale = 0, shift = 0, factor = 0;
  VisibleKeys seen{};
};

/// The largest score of a row by lane. Two neighbouring vectors have the same scales (Int8Groups), so integers are compared first.
template <bool kMasked>
FOVEA_INLINE Vec largest_int8(const Int8Step& step, const float* scores, const float* key_scales, VisibleKeys seen) {
  const __m512i lowest = _mm512_set1_epi32(INT32_MIN);
  Vec most = splat(kHidden);
  for (int key = 0; key < step.count; key += 2 * kLanes) {
    __m512i low = _mm512_loadu_si512(scores + key), high = _mm512_loadu_si512(scores + key + kLanes);
    const __mmask32 some = kMasked ? seen.at(key) : ~0U;
    if (kMasked) {
      low = _mm512_mask_mov_epi32(lowest, static_cast<__mmask16>(some), low);
      high = _mm512_mask_mov_epi32(lowest, static_cast<__mmask16>(some >> 16), high);
    }
    Vec here = mul({_mm512_cvtepi32_ps(_mm512_max_epi32(low, high))}, load(F32{}, key_scales + key));
    if (kMasked) here = {_mm512_mask_mov_ps(splat(kHidden).v, static_cast<__mmask16>(some | some >> 16), here.v)};
    most = max(here, most);
  }
  return most;
}

/// Integer scores of a row to weights, in place. Returns their sums by lane.
template <bool kMasked>
FOVEA_INLINE Vec weigh_int8(const Int8Step& step, float* scores, const float* key_scales, const Int8Row& row) {
  const Vec scale = splat(row.scale), shift = splat(-row.shift), factor = splat(row.factor);
  Vec sum = zero();
  for (int key = 0; key < step.count; key += 2 * kLanes) {
    const Vec by = mul(load(F32{}, key_scales + key), scale);
    Vec weight[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      weight[i] = exp2<true>(mul(fma(integers(scores + key + i * kLanes), by, shift), factor));
      if (kMasked) weight[i] = {_mm512_maskz_mov_ps(static_cast<__mmask16>(row.seen.at(key) >> (i * kLanes)), weight[i].v)};
      sum = add(sum, weight[i]);
    }
    BF16Math::store_weights(reinterpret_cast<BF16Math::Operand*>(scores) + key, weight);
  }
  return sum;
}

/// Mantissas of 2^(i / 128) in bf16.
struct alignas(64) Mantissas {
  constexpr Mantissas() {
    constexpr double kStep = 1.00542990111280282;  // 2^(1 / 128)
    double power = 1;
    for (std::uint8_t& mantissa : of) {
      mantissa = static_cast<std::uint8_t>((power - 1) * 128 + 0.5);
      power *= kStep;
    }
  }
  std::uint8_t of[128] = {};
};

/// 2^(x / 128 - 127) as bf16, zero for x < 0. x is rounded to an integer, which adds as much error as rounding the result does.
FOVEA_INLINE __m512i coarse_powers(Vec low, Vec high) {
  static constexpr Mantissas kMantissas;
  const __m512i by_quarter = _mm512_packus_epi32(_mm512_cvtps_epi32(low.v), _mm512_cvtps_epi32(high.v));
  const __m512i x = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), by_quarter);
  const __m512i mantissa =
      _mm512_maskz_permutex2var_epi8(0x5555555555555555U, _mm512_load_si512(kMantissas.of), x, _mm512_load_si512(kMantissas.of + 64));
  return _mm512_ternarylogic_epi32(x, _mm512_set1_epi16(static_cast<short>(0xff80)), mantissa, 0xea);  // (x & 0xff80) | mantissa
}

/// The same from coarse powers. The sums are those of the rounded weights.
template <bool kMasked>
FOVEA_INLINE Vec weigh_coarsely(const Int8Step& step, float* scores, const float* key_scales, const Int8Row& row) {
  constexpr float kSteps = 128, kOne = 127 * kSteps;
  const Vec scale = splat(row.scale * row.factor * kSteps), shift = splat(kOne - row.shift * row.factor * kSteps);
  const auto ones = (__m512bh)_mm512_set1_epi16(0x3f80);
  Vec sum = zero();
  for (int key = 0; key < step.count; key += 2 * kLanes) {
    const Vec by = mul(load(F32{}, key_scales + key), scale);
    __m512i p = coarse_powers(fma(integers(scores + key), by, shift), fma(integers(scores + key + kLanes), by, shift));
    if (kMasked) p = _mm512_maskz_mov_epi16(row.seen.at(key), p);
    _mm512_storeu_si512(reinterpret_cast<BF16Math::Operand*>(scores) + key, p);
    sum = {_mm512_dpbf16_ps(sum.v, (__m512bh)p, ones)};
  }
  return sum;
}

/// Scores to weights.
template <bool kMasked>
static void int8_softmax(const AttendTile& tile, const Int8Step& step) {
  const float *key_scales = tile.scores.k_scales + step.begin, *row_scales = tile.scores.q_scales + step.row;
  const SoftmaxTile rows{.rows = step.rows,
                         .factor = tile.softmax.factor,
                         .maximum = tile.softmax.maximum + step.row,
                         .sum = tile.softmax.sum + step.row,
                         .rescale = tile.softmax.rescale + step.row};
  const auto seen = [&](int i) {
    if (!kMasked) return VisibleKeys{};
    const KeySpan keys = tile.softmax.visible[step.row + i];
    return VisibleKeys{keys.begin - step.begin, keys.end - step.begin};
  };
  Lanes lanes;
  alignas(64) float shift[kMaxSoftmaxRows];
  for (int i = 0; i < step.rows; ++i) {
    const Vec most = largest_int8<kMasked>(step, tile.scores.scores + i * tile.scores.score_stride, key_scales, seen(i));
    // A row without visible keys may have the scale 0, and 0 times what hides keys is NaN: that gives way to the other operand.
    store(F32{}, lanes.row[i], max(mul(most, splat(row_scales[i])), splat(kHidden)));
  }
  for (int i = step.rows; i < kMaxSoftmaxRows; ++i) store(F32{}, lanes.row[i], zero());
  raise_maxima(rows, lanes, shift);
  for (int i = 0; i < step.rows; ++i) {
    const Int8Row row{row_scales[i], shift[i], rows.factor, seen(i)};
    float* const scores = tile.scores.scores + i * tile.scores.score_stride;
    store(
        F32{}, lanes.row[i],
        tile.softmax.coarse ? weigh_coarsely<kMasked>(step, scores, key_scales, row) : weigh_int8<kMasked>(step, scores, key_scales, row));
  }
  add_sums(rows, lanes);
}

template <bool kBoth>
FOVEA_INLINE void int8_step(const AttendTile& tile, const Int8Step& step) {
  float* const scores = tile.scores.scores;
  for (int key = 0; key < step.count; key += kPanel) int8_score_tiles<kBoth>(tile.scores, step.row, step.begin + key, scores + key);
  tile.softmax.visible != nullptr ? int8_softmax<true>(tile, step) : int8_softmax<false>(tile, step);
  rescale_rows(tile.values, step.row, step.rows);
  const RowBlock block{step.row, step.rows, step.begin, step.begin + step.count};
  for (int column = 0; column < tile.values.head_dim; column += kPanel) {
    value_tiles<kBoth>(tile.values, block, reinterpret_cast<const std::uint16_t*>(scores), 2 * tile.scores.score_stride, column);
  }
}

/// The largest scale, or infinity if one is negative or not a number. Reads whole vectors: both arrays have room.
FOVEA_INLINE float largest_scale(const float* scales, int count) {
  Vec most = zero();
  for (int i = 0; i < count; i += kLanes) {
    const Vec here = load(F32{}, scales + i);
    const auto inside = static_cast<__mmask16>(count - i < kLanes ? (1 << (count - i)) - 1 : -1);
    const __mmask16 good = _mm512_cmp_ps_mask(here.v, zero().v, _CMP_GE_OQ);
    most = {_mm512_mask_max_ps(most.v, inside & good, most.v, here.v)};
    most = {_mm512_mask_mov_ps(most.v, inside & static_cast<__mmask16>(~good), splat(__builtin_inff()).v)};
  }
  return reduce_max(most);
}

/// Whether int8_softmax() is exact: a score is rounded once, behind the subtraction of a maximum that was rounded before.
FOVEA_INLINE bool has_small_exponents(const AttendTile& tile) {
  constexpr float kMost = 1 << 15;
  int row_end = 0, key_begin = tile.scores.blocks[0].key_begin, key_end = 0;
  for (int i = 0; i < tile.scores.block_count; ++i) {
    const RowBlock& block = tile.scores.blocks[i];
    row_end = block.row + block.rows;
    if (block.key_begin < key_begin) key_begin = block.key_begin;
    if (block.key_end > key_end) key_end = block.key_end;
  }
  const int row = tile.scores.blocks[0].row;
  const float product = 127.0f * 127.0f * static_cast<float>(tile.scores.head_dim);
  const float scales =
      largest_scale(tile.scores.q_scales + row, row_end - row) * largest_scale(tile.scores.k_scales + key_begin, key_end - key_begin);
  return scales * product * tile.softmax.factor < kMost;
}

/// As the table's three functions do it.
static void int8_attend_exactly(const AttendTile& tile) {
  int8_tile_scores(tile.scores);
  for (int i = 0; i < tile.scores.block_count; ++i) {
    const RowBlock& block = tile.scores.blocks[i];
    SoftmaxTile softmax = tile.softmax;
    softmax.scores += block.row * softmax.score_stride;
    softmax.p = static_cast<BF16Math::Operand*>(softmax.p) + block.row * softmax.p_stride;
    softmax.rows = block.rows;
    softmax.begin = block.key_begin;
    softmax.end = block.key_end;
    if (softmax.visible != nullptr) softmax.visible += block.row;
    softmax.maximum += block.row;
    softmax.sum += block.row;
    softmax.rescale += block.row;
    FOVEA_ISA::softmax<BF16Math>(softmax);
  }
  tile_values(tile.values);
}

static void int8_attend(const AttendTile& tile) {
  if (!has_small_exponents(tile)) return int8_attend_exactly(tile);
  for (int i = 0; i < tile.scores.block_count; ++i) {
    const RowBlock& block = tile.scores.blocks[i];
    for (int key = block.key_begin / kStepKeys * kStepKeys; key < block.key_end; key += kStepKeys) {
      const int begin = key > block.key_begin ? key : block.key_begin;
      const int end = key + kStepKeys < block.key_end ? key + kStepKeys : block.key_end;
      const Int8Step step{block.row, block.rows, begin, end - begin};
      block.rows > kTileRows ? int8_step<true>(tile, step) : int8_step<false>(tile, step);
    }
  }
}

}  // namespace fovea::cpu::FOVEA_ISA
