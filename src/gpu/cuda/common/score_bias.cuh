// SPDX-License-Identifier: Apache-2.0
/// ALiBi, an additive bias and dropout of the accumulators of an MMA, whose rows are queries.
#pragma once

#include <cstdint>

#include "gpu/cuda/common/attention_params.hpp"
#include "gpu/cuda/common/element.cuh"
#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/common/score_bias.hpp"

namespace fovea::gpu {

/// A query row of a head.
struct BiasPlace {
  int sequence, head, token;
  int seq_q, seq_k;
};

/// The bias of a query row, at key 0.
template <class Element>
__device__ __forceinline__ const Element* bias_row(const ScoreBiasParams& terms, const BiasPlace& at) {
  const detail::BiasStrides& s = terms.strides;
  const int token = min(at.token, at.seq_q - 1);  // rows past the end of a tile read what exists
  return static_cast<const Element*>(terms.bias) + at.sequence * s.batch + at.head * s.head + token * s.row;
}

/// ALiBi of a query row.
struct RowSlope {
  float slope;
  int diagonal;  // the key at distance 0

  static __device__ __forceinline__ RowSlope of(const AttentionParams& params, const ScoreBiasParams& terms, const BiasPlace& at) {
    return {terms.slopes[at.sequence * terms.slope_batch + at.head * terms.slope_head],
            at.token + (params.mask.anchor == Anchor::bottom_right ? at.seq_k - at.seq_q : 0)};
  }
};

/// The sum of ALiBi and bias that is added to one score, in natural units.
template <class Element>
__device__ inline float added_score(const AttentionParams& params, const ScoreBiasParams& terms, const BiasPlace& at, int key) {
  float sum = 0;
  if (terms.slopes != nullptr) {
    const RowSlope row = RowSlope::of(params, terms, at);
    sum = -row.slope * fabsf(static_cast<float>(key - row.diagonal));
  }
  if (terms.bias != nullptr) sum += to_f32(bias_row<Element>(terms, at)[key * terms.strides.key]);
  return sum;
}

/// Where a tile lies beside the diagonals of its rows, the columns at distance 0.
enum class Side { left, right, both };

/// `begin`: the first of `columns` columns. `lowest` and `highest`: of the diagonals.
__device__ __forceinline__ Side side_of(int begin, int columns, int lowest, int highest) {
  return begin + columns <= lowest + 1 ? Side::left : begin >= highest ? Side::right : Side::both;
}

/// x = x * unit + ALiBi. `column`: the lane's first. On one side of the diagonals the distance is linear.
template <int kCount>
__device__ __forceinline__ void add_alibi(float (&x)[kCount], float unit, const RowSlope (&rows)[2], int column, Side side) {
  float first[2], step[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    first[r] = static_cast<float>(column - rows[r].diagonal);
    step[r] = side == Side::left ? rows[r].slope : -rows[r].slope;
  }
  if (side == Side::both) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int r = row_of(i);
      x[i] = fmaf(x[i], unit, step[r] * fabsf(first[r] + static_cast<float>(column_of(i))));
    }
  } else {
#pragma unroll
    for (int r = 0; r < 2; ++r) first[r] *= step[r];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int r = row_of(i);
      x[i] = fmaf(x[i], unit, fmaf(static_cast<float>(column_of(i)), step[r], first[r]));
    }
  }
}

/// The bias of a row of accumulators, from the lane's first column on. `end`: columns from there on to the end of the sequence.
template <class Element>
struct BiasColumns {
  const Element* first;
  std::int64_t stride;
  bool in_pairs;
  int end;
};

/// Adds it to the lane's accumulators of row r.
template <class Element, int kCount>
__device__ __forceinline__ void add_bias(float (&x)[kCount], int r, const BiasColumns<Element>& bias) {
  constexpr int kColumns = kCount * 2;  // of a tile
  if (bias.in_pairs && bias.end >= kColumns) {
#pragma unroll
    for (int i = 2 * r; i < kCount; i += 4) {
      const auto pair = load_pack<2>(bias.first + column_of(i));
      x[i] += to_f32(pair.element[0]);
      x[i + 1] += to_f32(pair.element[1]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (row_of(i) == r && column_of(i) < bias.end) x[i] += to_f32(bias.first[column_of(i) * bias.stride]);
    }
  }
}

/// Evaluates philox of several counters together, which share the sums of the keys.
template <int kCount>
__device__ __forceinline__ void philox(detail::PhiloxWords (&words)[kCount], detail::PhiloxKey key) {
#pragma unroll
  for (int round = 0; round < detail::kPhiloxRounds; ++round, key = detail::next_round(key)) {
#pragma unroll
    for (detail::PhiloxWords& each : words) each = detail::philox_round(each, key);
  }
}

/// Whether a key stays, by the word of its pair and by which of the two it is.
__device__ __forceinline__ bool stays(std::uint32_t word, bool second, std::uint32_t last_dropped) {
  return (second ? word : word << 16) > last_dropped;
}

/// A query row, for philox: `head` counts through the batch.
struct DropoutRow {
  std::uint32_t token, head;
};

/// Zeros in the weights of dropped keys, of a tile that begins at `key`. `zero` is 0, unknown to the compiler: it makes evaluations wait
/// for those before them, as all at once take too many registers.
template <int kCount>
__device__ __forceinline__ void drop(float (&p)[kCount], detail::PhiloxKey random, std::uint32_t last_dropped, const DropoutRow (&rows)[2],
                                     int key, std::uint32_t zero) {
  constexpr int kColumns = kCount * 2, kEvaluated = kColumns < detail::kDropoutKeys ? kColumns : detail::kDropoutKeys;
  const auto quarter = threadIdx.x % 4;
#pragma unroll
  for (int begin = 0; begin < kColumns; begin += kEvaluated) {
    const std::uint32_t first = 4 * (static_cast<unsigned>(key + begin) / detail::kDropoutKeys) + quarter;
    detail::PhiloxWords words[2] = {{first, rows[0].token, rows[0].head, 0}, {first, rows[1].token, rows[1].head, 0}};
    philox(words, random);
    random.low += (words[0].x ^ words[1].x) & zero;
#pragma unroll
    for (int i = begin / 2; i < (begin + kEvaluated) / 2; ++i) {
      const int eight = column_of(i) / 8 % 4;
      const detail::PhiloxWords& of = words[row_of(i)];
      const std::uint32_t word = kColumns < detail::kDropoutKeys && key % 32 >= 16 ? of.word(eight + 2) : of.word(eight);
      if (!stays(word, column_of(i) % 2 != 0, last_dropped)) p[i] = 0;
    }
  }
}

/// The factor by which dropout multiplies the weight of one key.
__device__ inline float kept_share(const ScoreBiasParams& terms, DropoutRow row, int key) {
  if (terms.dropout_state == nullptr) return terms.keep_factor;
  const detail::PhiloxKey random = detail::philox_key(terms.dropout_state[0], terms.dropout_state[1]);
  const auto j = static_cast<std::uint32_t>(key);
  const detail::PhiloxWords words = detail::philox({j / 32 * 4 + j / 2 % 4, row.token, row.head, 0}, random);
  return stays(words.word(static_cast<int>(j / 8 % 4)), j % 2 != 0, terms.last_dropped) ? terms.keep_factor : 0.0f;
}

}  // namespace fovea::gpu
