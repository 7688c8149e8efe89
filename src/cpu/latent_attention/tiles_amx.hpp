// SPDX-License-Identifier: Apache-2.0
/// Latent attention on AMX tiles. Key rows are an operand as they lie: the scores are computed transposed, K Q^T, 32 keys by 32 heads. The
/// softmax then has a head in each lane, and transposes the weights. V has the panels of dense attention, which need pairs of keys.
#pragma once

#include "cpu/attention/gemm_amx.hpp"
#include "cpu/attention/pack.hpp"
#include "cpu/attention/softmax.hpp"

namespace fovea::cpu::FOVEA_ISA {

inline constexpr int kScoreRow = 2 * kTileRows;  // floats of a key's scores; those of a block lie in the room of its rows
static_assert(kTileRows == kLanes);

/// Pairs of two rows, 16 columns in each register.
FOVEA_INLINE void interleave_columns(Pairs first, Pairs second, std::uint16_t* to) {
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);  // quarters then hold what unpacking takes from them
  const __m512i a = _mm512_permutexvar_epi64(order, first.v), b = _mm512_permutexvar_epi64(order, second.v);
  _mm512_storeu_si512(to, _mm512_unpacklo_epi16(a, b));
  _mm512_storeu_si512(to + 2 * kLanes, _mm512_unpackhi_epi16(a, b));
}

/// Keys between a row that is packed, and one that is prefetched meanwhile.
inline constexpr int kRowsAhead = 32;

/// Copies rows, [key][row_stride], and lays V out as pack_values does. For each line that it reads it prefetches another, so that the
/// memory has no pause.
template <class S>
static bool pack_rows(const LatentRows& from) {
  constexpr int kRows = 8, kWidth = BF16Math::kRegWidth;
  static_assert(kWidth == kPanel);
  BF16Math::Finite finite{};
  for (int key = 0; key < from.count; key += kRows) {
    const Row* rows = from.rows + key;
    const Row* ahead = key + kRowsAhead < from.count ? rows + kRowsAhead : rows;
    auto* keys = static_cast<std::uint16_t*>(from.keys) + key * from.row_stride;
    auto* values = static_cast<std::uint16_t*>(from.values) + static_cast<std::int64_t>(key) * kPanel;
    for (int d = 0; d < from.head_dim_qk; d += kWidth, values += static_cast<std::int64_t>(from.kv_tile) * kPanel) {
      const std::int64_t offset = d * static_cast<std::int64_t>(sizeof(typename S::Code));
#pragma GCC unroll 4
      for (int i = 0; i < kRows; i += 2) {
        __builtin_prefetch(static_cast<const char*>(ahead[i]) + offset, 0, 2);
        __builtin_prefetch(static_cast<const char*>(ahead[i + 1]) + offset, 0, 2);
        const Pairs first = BF16Math::load_row(S{}, static_cast<const char*>(rows[i]) + offset);
        const Pairs second = BF16Math::load_row(S{}, static_cast<const char*>(rows[i + 1]) + offset);
        BF16Math::store_operands(keys + i * from.row_stride + d, first);
        BF16Math::store_operands(keys + (i + 1) * from.row_stride + d, second);
        if (d >= from.head_dim_v) continue;
        BF16Math::Finite::look(finite, first);
        BF16Math::Finite::look(finite, second);
        interleave_columns(first, second, values + i * kPanel);
      }
    }
  }
  return finite.all();
}

/// Transposes 16 rows of 16 elements.
FOVEA_INLINE void transpose16x16(__m512i (&r)[16]) {
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    const __m512i low = _mm512_unpacklo_epi32(r[i], r[i + 1]), high = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    r[i] = low;
    r[i + 1] = high;
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const __m512i a = _mm512_unpacklo_epi64(r[i], r[i + 2]), b = _mm512_unpackhi_epi64(r[i], r[i + 2]);
    const __m512i c = _mm512_unpacklo_epi64(r[i + 1], r[i + 3]), d = _mm512_unpackhi_epi64(r[i + 1], r[i + 3]);
    r[i] = a;
    r[i + 1] = b;
    r[i + 2] = c;
    r[i + 3] = d;
  }
  // r[4 g + c] has column 4 q + c of rows 4 g to 4 g + 3 in its quarter q.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i even01 = _mm512_shuffle_i32x4(r[c], r[c + 4], 0x88), odd01 = _mm512_shuffle_i32x4(r[c], r[c + 4], 0xdd);
    const __m512i even23 = _mm512_shuffle_i32x4(r[c + 8], r[c + 12], 0x88), odd23 = _mm512_shuffle_i32x4(r[c + 8], r[c + 12], 0xdd);
    r[c] = _mm512_shuffle_i32x4(even01, even23, 0x88);
    r[c + 4] = _mm512_shuffle_i32x4(odd01, odd23, 0x88);
    r[c + 8] = _mm512_shuffle_i32x4(even01, even23, 0xdd);
    r[c + 12] = _mm512_shuffle_i32x4(odd01, odd23, 0xdd);
  }
}

/// Transposes the pairs of each 16 rows in place, 16 pairs at a time: row p of 32 columns then holds pair p of the 16 rows. Rows that pad
/// the last sixteen become zeros.
static void transpose_q(void* q, int rows, std::int64_t stride) {
  auto* first = static_cast<std::uint16_t*>(q);
  for (int row = 0; row < rows; row += kTileRows, first += kTileRows * stride) {
    for (std::int64_t column = 0; column < stride; column += kTileDepth) {
      __m512i pairs[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        pairs[i] = row + i < rows ? _mm512_loadu_si512(first + i * stride + column) : _mm512_setzero_si512();
      }
      transpose16x16(pairs);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) _mm512_storeu_si512(first + i * stride + column, pairs[i]);
    }
  }
}

/// Rows of the next tile that are prefetched with the scores of 32 keys: kRowsAhead with those of a tile.
inline constexpr int kLatentTile = kMostLatentKeys;
inline constexpr int kRowsPrefetched = kRowsAhead * kPanel / kLatentTile;

/// The scores of 32 keys and 16 heads, or with kBoth 32.
template <bool kBoth>
FOVEA_INLINE void key_tiles(const ScoreTile& tile, const RowBlock& block, int key, const char* const (&next)[kRowsPrefetched]) {
  const auto* keys = static_cast<const std::uint16_t*>(tile.keys) + key * tile.row_stride;
  const auto* q = static_cast<const std::uint16_t*>(tile.q) + block.row * tile.q_stride;
  const std::int64_t key_bytes = tile.row_stride * 2, q_bytes = tile.q_stride * 2;
  const int head_dim = tile.head_dim;
  float* scores = tile.scores + block.row * tile.score_stride + key * kScoreRow;
  zero_tiles<kBoth>();
  for (int d = 0; d < head_dim; d += kTileDepth) {
#pragma GCC unroll 4
    for (const char* row : next) __builtin_prefetch(row + (2 * d < tile.next_bytes ? 2 * d : 0), 0, 2);
    tile_load<6>(q + d, q_bytes);
    tile_load<4>(keys + d, key_bytes);
    tile_multiply_bf16<0, 4, 6>();
    tile_load<5>(keys + d + kTileRows * (key_bytes / 2), key_bytes);
    tile_multiply_bf16<1, 5, 6>();
    if constexpr (kBoth) {
      tile_load<7>(q + d + kTileRows * (q_bytes / 2), q_bytes);
      tile_multiply_bf16<2, 4, 7>();
      tile_multiply_bf16<3, 5, 7>();
    }
  }
  tile_store<0>(scores, kScoreRow * 4);
  tile_store<1>(scores + kTileRows * kScoreRow, kScoreRow * 4);
  if constexpr (kBoth) {
    tile_store<2>(scores + kTileRows, kScoreRow * 4);
    tile_store<3>(scores + kTileRows * kScoreRow + kTileRows, kScoreRow * 4);
  }
}

/// Keys are the outer loop: those of a step stay in the first-level cache while all heads of the chunk multiply them. The first block
/// prefetches the first rows of the next tile; packing prefetches the others. Other blocks prefetch what they multiply, which costs
/// nothing.
static void key_scores(const ScoreTile& tile) {
  each_panel(tile, [&](const RowBlock& block, int key) {
    const int row = key / kPanel * kRowsPrefetched;
    const char* next[kRowsPrefetched];
    for (int i = 0; i < kRowsPrefetched; ++i) {
      const bool wanted = &block == tile.blocks && row + i < tile.next_count;
      next[i] = static_cast<const char*>(wanted ? tile.next[row + i] : tile.q);
    }
    block.rows > kTileRows ? key_tiles<true>(tile, block, key, next) : key_tiles<false>(tile, block, key, next);
  });
}

/// As cap(), for a row in each lane.
static void cap_keys(const SoftmaxTile& tile, float* scores) {
  const SoftCap by = tile.soft_cap;
  for (int key = tile.begin; key < tile.end; ++key) {
    float* const at = scores + key * kScoreRow;
    store(F32{}, at, capped(load(F32{}, at), by).score);
  }
}

/// Hides the keys that the rows do not see, as hide() does.
static void hide_keys(const SoftmaxTile& tile, float* scores, const KeySpan* visible, int rows) {
  alignas(64) std::int32_t first[kLanes] = {}, last[kLanes] = {};
  for (int i = 0; i < rows; ++i) {
    first[i] = visible[i].begin;
    last[i] = visible[i].end;
  }
  const __m512i begin = _mm512_load_si512(first), end = _mm512_load_si512(last);
  for (int key = tile.begin; key < tile.end; ++key) {
    const __m512i here = _mm512_set1_epi32(key);
    const __mmask16 hidden = _mm512_cmplt_epi32_mask(here, begin) | _mm512_cmple_epi32_mask(end, here);
    _mm512_mask_storeu_ps(scores + key * kScoreRow, hidden, splat(kHidden).v);
  }
}

/// As largest(), for a row in each lane.
FOVEA_INLINE Vec largest_of_keys(const SoftmaxTile& tile, const float* scores) {
  Vec even = splat(kHidden), odd = even;
  for (int key = tile.begin; key < tile.end; key += 2) {
    even = max(load(F32{}, scores + key * kScoreRow), even);
    odd = max(load(F32{}, scores + (key + 1) * kScoreRow), odd);
  }
  return max(even, odd);
}

/// The weights of two keys, as pairs.
FOVEA_INLINE Pairs interleaved(Vec first, Vec second) {
  const __m512i words = (__m512i)_mm512_cvtne2ps_pbh(second.v, first.v);
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3,
                                         18, 2, 17, 1, 16, 0);
  return {_mm512_permutexvar_epi16(order, words)};
}

/// As weigh(), for a row in each lane. The weights are transposed to [row][p_stride].
FOVEA_INLINE Vec weigh_keys(const SoftmaxTile& tile, const float* scores, std::uint16_t* p, Vec shift) {
  const Vec factor = splat(tile.factor);
  Vec even = zero(), odd = zero();
  for (int key = tile.begin; key < tile.end; key += kTileDepth) {
    __m512i pairs[16];
#pragma GCC unroll 4
    for (int i = 0; i < 16; ++i) {
      const float* at = scores + (key + 2 * i) * kScoreRow;
      const Vec first = exp2<true>(mul(sub(load(F32{}, at), shift), factor));
      const Vec second = exp2<true>(mul(sub(load(F32{}, at + kScoreRow), shift), factor));
      even = add(even, first);
      odd = add(odd, second);
      pairs[i] = interleaved(first, second).v;
    }
    transpose16x16(pairs);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) _mm512_storeu_si512(p + i * tile.p_stride + key, pairs[i]);
  }
  return add(even, odd);
}

/// The step of softmax(). Latent attention has no softcap; a scale that no exponent bears comes as one. Lanes that pad the last rows
/// compute what nothing reads.
static void softmax_of_keys(const SoftmaxTile& tile) {
  for (int row = 0; row < tile.rows; row += kLanes) {
    float* scores = tile.scores + row;
    if (tile.soft_cap.cap != 0) cap_keys(tile, scores);
    if (tile.visible != nullptr) hide_keys(tile, scores, tile.visible + row, tile.rows - row < kLanes ? tile.rows - row : kLanes);
    const Vec before = load(F32{}, tile.maximum + row), now = max(before, largest_of_keys(tile, scores));
    const Vec shift = select_less(splat(kHidden), now, now, zero());
    const Vec rescale = exp2(mul(sub(before, shift), splat(tile.factor)));
    const Vec sum = weigh_keys(tile, scores, static_cast<std::uint16_t*>(tile.p) + row * tile.p_stride, shift);
    store(F32{}, tile.maximum + row, now);
    store(F32{}, tile.rescale + row, rescale);
    store(F32{}, tile.sum + row, fma(load(F32{}, tile.sum + row), rescale, sum));
  }
}

inline constexpr AttentionKernels kLatentTileKernels{
    .arithmetic = "bf16 AMX, keys by heads,",
    .block_rows = 2 * kTileRows,
    .panel = kPanel,
    .depth = kTileDepth,
    .operand_bytes = sizeof(BF16Math::Operand),
    .latent_tile = kLatentTile,
    .enter = enter_tiles,
    .leave = leave_tiles,
    .load_q = {nullptr, nullptr, load_q<BF16Math, BF16>, load_q<BF16Math, E4M3>},
    .pack_q = transpose_q,
    .pack_latent = {nullptr, nullptr, pack_rows<BF16>, pack_rows<E4M3>},
    .scores = key_scores,
    .softmax = softmax_of_keys,
    .values = tile_values,
};

}  // namespace fovea::cpu::FOVEA_ISA
