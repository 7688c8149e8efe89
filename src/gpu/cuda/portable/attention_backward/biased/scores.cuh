// SPDX-License-Identifier: Apache-2.0
/// The gradient of a block of 16 rows of scores with ALiBi, a bias or dropout. Rows are queries or keys.
#pragma once

#include "gpu/cuda/common/score_bias.cuh"
#include "gpu/cuda/portable/attention_backward/load.cuh"
#include "gpu/cuda/portable/attention_backward/scores.cuh"

namespace fovea::gpu::portable::attention_backward {

template <class Config>
struct BiasedBlock {
  const Params& params;
  const Storage<Config>& storage;
  int head;  // of the queries
  int tile, stage;
  int first_row, first_column;  // of the CTA's rows, and of the tile's columns

  /// The block that begins `rows` rows further.
  __device__ __forceinline__ BiasedBlock below(int rows) const {
    int row = first_row + rows;
    asm volatile("" : "+r"(row));  // what follows from it, kept from tile to tile, would take registers
    return {params, storage, head, tile, stage, row, first_column};
  }

  /// Scores become p, as far as dropout leaves it, and dp becomes ds or, with `kOfBias`, the gradient of the bias.
  template <bool kOfBias = false, int kScores, class OfQuery>
  __device__ __forceinline__ void differentiate(float (&scores)[kScores], float (&dp)[kScores], int natural,
                                                const OfQuery& of_query) const {
    if (params.softcap == 0) {
      weigh(scores, natural, of_query);
      return multiply(scores, dp, of_query);
    }
    constexpr bool kOfScores = Config::kOfScores;
    if constexpr (kOfScores) {
      for_pairs<kScores>([&](int i, bool kept) { dp[i] = (kept ? dp[i] * params.bias.keep_factor : 0) - of_query.delta(i); });
    }
    ScoreGradient<kOfScores && !kOfBias>{params}.cap(scores, dp);
    add_terms(scores);
    ScoreGradient<kOfScores>{params}.exponentiate(scores, dp, true, natural, of_query);
    for_pairs<kScores>([&](int i, bool kept) {
      if (!kept) scores[i] = 0;
    });
  }

  /// The same in two steps, without a softcap: first scores become p.
  template <int kScores, class OfQuery>
  __device__ __forceinline__ void weigh(float (&scores)[kScores], int natural, const OfQuery& of_query) const {
    add_terms(scores);
    ScoreGradient<false>{params}.exponentiate(scores, scores, true, natural, of_query);
  }
  /// Then dp becomes ds, and dropped weights zeros.
  template <int kScores, class OfQuery>
  __device__ __forceinline__ void multiply(float (&p)[kScores], float (&dp)[kScores], const OfQuery& of_query) const {
    for_pairs<kScores>([&](int i, bool kept) {
      if constexpr (Config::kOfScores) dp[i] = ((kept ? dp[i] * params.bias.keep_factor : 0) - of_query.delta(i)) * p[i];
      if (!kept) p[i] = 0;
    });
  }

 private:
  using Element = typename Config::Element;
  static constexpr bool kQueries = Config::kRowsAreQueries;

  __device__ __forceinline__ int lane() const { return static_cast<int>(threadIdx.x) % 32; }
  /// The lane's row among the CTA's, and its column among the tile's.
  __device__ __forceinline__ int row(int r) const { return first_row + lane_row(lane()) + 8 * r; }
  __device__ __forceinline__ int column(int i) const { return first_column + lane_column(lane()) + column_of(i); }

  /// visit(i, whether dropout leaves it) for each accumulator.
  template <int kScores, class Visit>
  __device__ __forceinline__ void for_pairs(const Visit& visit) const {
    if (params.bias.dropout_state == nullptr) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) visit(i, true);
    } else {
#pragma unroll
      for (int i = 0; i < kScores; ++i) visit(i, stays(i));
    }
  }
  __device__ __forceinline__ bool stays(int i) const {
    constexpr int kKeys = detail::kDropoutKeys;
    const auto& words = storage.stats[stage].kept;
    if constexpr (kQueries) {
      const std::uint32_t word = words[column_of(i) / kKeys][row(row_of(i))] >> lane_column(lane());
      return (word >> column_of(i) % kKeys & 1) != 0;
    } else {
      const std::uint32_t word = words[first_row / kKeys][column(i)] >> row(0) % kKeys;
      return (word >> 8 * row_of(i) & 1) != 0;
    }
  }

  /// Makes natural units of scores, and adds ALiBi and bias.
  template <int kScores>
  __device__ __forceinline__ void add_terms(float (&scores)[kScores]) const {
    const Work& work = storage.work;
    const ScoreBiasParams& terms = params.bias;
    const int sequence = sequence_index(params, work.sequence), begin = tile * Config::kColumns + first_column;
    const float unit = params.softcap != 0 ? 1 : params.scale;
    if (terms.slopes != nullptr) {
      const bool bottom_right = params.mask.anchor == Anchor::bottom_right;
      const int offset = bottom_right ? work.sequence.seq_k - work.sequence.seq_q : 0;
      const int first = work.row + (kQueries ? offset : -offset);  // the diagonal of the CTA's first row
      const float slope = terms.slopes[sequence * terms.slope_batch + head * terms.slope_head];
      const RowSlope rows[2] = {{slope, first + row(0)}, {slope, first + row(1)}};
      const Side side = side_of(begin, 2 * kScores, first + first_row, first + first_row + 15);
      add_alibi(scores, unit, rows, begin + lane_column(lane()), side);
    } else {
#pragma unroll
      for (float& x : scores) x *= unit;
    }
    if (terms.bias == nullptr) return;
    const detail::BiasStrides& s = terms.strides;
    const std::int64_t of_row = kQueries ? s.row : s.key, of_column = kQueries ? s.key : s.row;
    const auto* const plane = static_cast<const Element*>(terms.bias) + sequence * s.batch + head * s.head;
    const int from = begin + lane_column(lane()), end = (kQueries ? work.sequence.seq_k : work.sequence.seq_q) - from;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at = min(work.row + row(r), work.rows - 1);  // absent rows read what exists
      add_bias(scores, r, BiasColumns<Element>{plane + at * of_row + from * of_column, of_column, kQueries && terms.in_pairs, end});
    }
  }
};

}  // namespace fovea::gpu::portable::attention_backward
