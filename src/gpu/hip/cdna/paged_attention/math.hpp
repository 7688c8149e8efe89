// SPDX-License-Identifier: Apache-2.0
/// The MMAs of a wave: scores as K Q^T, softmax, and out^T += V^T P^T. A lane's accumulators of the first are its operand of the second,
/// so probabilities never leave their registers. Row l % 16 of a block belongs to lane l throughout.
#pragma once

#include "gpu/common/score_transform.cuh"
#include "gpu/hip/cdna/paged_attention/load.hpp"
#include "gpu/hip/cdna/paged_attention/state.hpp"

namespace fovea::gpu::cdna::paged_attention {

/// The scale of a kv head's keys joins that of the scores.
__device__ __forceinline__ ScoreTransform<Wave> score_transform(const Params& params, int kv_head) {
  const float scale = params.scale * (params.k_scale == nullptr ? 1.0f : params.k_scale[kv_head * params.k_scale_stride]);
  return ScoreTransform<Wave>::make(scale, params.softcap, params.softcap == 0 ? 0 : 2 * kLog2e * (scale / params.softcap));
}

/// Values of the lane's row of each block.
template <class Config>
struct Rows {
  int token[Config::kRowBlocks], head[Config::kRowBlocks];
  bool present[Config::kRowBlocks];  ///< a row past the end repeats the last one, and is not stored

  __device__ Rows(const Params& params, const Work& work) {
#pragma unroll
    for (int b = 0; b < Config::kRowBlocks; ++b) {
      const int row = work.row + 16 * b + lane() % 16;
      present[b] = row < work.rows;
      const int last = std::max(work.rows, 1) - 1, of = std::min(row, last);
      token[b] = params.group.quotient(of);
      head[b] = work.kv_head * params.group.divisor + of - token[b] * params.group.divisor;
    }
  }
};

template <class Config, bool kGeneral>
class Math {
 public:
  using Element = typename Config::Element;
  using Load = Loader<Config, kGeneral>;
  static constexpr int kScores = 4 * Config::kKeyBlocks;

  __device__ Math(const Params& params_, const Work& work_, const Rows<Config>& rows_, const ScoreTransform<Wave>& scores_)
      : params(params_), work(work_), rows(rows_), transform(scores_), scale_log2(scores_.scale_log2), load(params_, work_) {
    load_queries();
  }

  /// Over the wave's tiles: those whose number is its own, modulo the waves that share the rows.
  __device__ __forceinline__ void operator()(State<Config>& state) {
    constexpr int kStride = Config::kKeyWaves;
    int tile = work.first + (work.key_wave - work.first % kStride + kStride) % kStride;
    if (tile >= work.last) return;
    typename Load::Tokens tokens;
    typename Load::Keys keys;
    load.look_up(tile, tokens);
    load.load(tile, tokens, keys);
    while (tile < work.last) {
      const int next = tile + kStride;
      typename Load::Values values;
      load.load(tile, tokens, values);
      if (next < work.last) load.look_up(next, tokens);
      Float4 scores[Config::kRowBlocks][Config::kKeyBlocks];
      if (any(Load::needs_care(keys))) {
        multiply_keys<true>(keys, scores);
      } else {
        multiply_keys<false>(keys, scores);
      }
      if (next < work.last) load.load(next, tokens, keys);
      add_values(state, tile, scores, values);
      tile = next;
    }
  }

 private:
  /// Chunk 4 s + l / 16 of row l % 16, as the keys are loaded; zeros past the head dim.
  __device__ __forceinline__ void load_queries() {
    using Storage = typename Element::Storage;
#pragma unroll
    for (int b = 0; b < Config::kRowBlocks; ++b) {
      const Storage* row = static_cast<const Storage*>(params.q) + before_rows(work, params.q_strides) +
                           rows.token[b] * params.q_strides.row + rows.head[b] * params.q_strides.head;
#pragma unroll
      for (int s = 0; s < Config::kSteps; ++s) {
        const int element = 8 * (4 * s + lane() / 16);
        const bool has = Config::within(element, params.head_dim_qk);
        const Chunk chunk = has ? load_unaligned<Chunk>(row + element) : Chunk{};
        queries[b][s] = s < Config::kKeySteps ? Config::Cache::arranged(chunk) : chunk;
      }
    }
  }

  /// scores (key tile x rows) = K Q^T
  template <bool kCareful>
  __device__ __forceinline__ void multiply_keys(const typename Load::Keys& keys,
                                                Float4 (&scores)[Config::kRowBlocks][Config::kKeyBlocks]) const {
#pragma unroll
    for (int n = 0; n < Config::kKeyBlocks; ++n) {
#pragma unroll
      for (int b = 0; b < Config::kRowBlocks; ++b) scores[b][n] = Float4{};
#pragma unroll
      for (int s = 0; s < Config::kSteps; ++s) {
        const Chunk chunk = Load::template widened<kCareful>(keys, n, s);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int b = 0; b < Config::kRowBlocks; ++b) {
            scores[b][n] = Element::multiply_add(operand(chunk, half), operand(queries[b][s], half), scores[b][n]);
          }
        }
      }
    }
  }

  /// Scores of keys that the lane's row does not see become minus infinity.
  __device__ __forceinline__ void mask(int block, int tile, float (&scores)[kScores]) const {
    const int token = rows.token[block], key = tile * Config::kKeyTile + 4 * (lane() / 16);
    const int begin = std::max(token + work.low, 0) - key, end = std::min(token + work.high + 1, work.seq_k) - key;
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int at = 16 * (i / 4) + i % 4;
      scores[i] = at < begin || at >= end ? -INFINITY : scores[i];
    }
  }

  /// out^T (head dim x rows) += V^T P^T
  __device__ __forceinline__ void add_values(State<Config>& state, int tile,
                                             const Float4 (&products)[Config::kRowBlocks][Config::kKeyBlocks],
                                             const typename Load::Values& values) const {
    const bool edge = tile < work.full_first || tile >= work.full_last;
    Short4 weights[Config::kRowBlocks][Config::kKeyBlocks];
#pragma unroll
    for (int b = 0; b < Config::kRowBlocks; ++b) {
      float scores[kScores];
#pragma unroll
      for (int i = 0; i < kScores; ++i) scores[i] = transform(products[b][i / 4][i % 4]);
      if (edge) mask(b, tile, scores);
      float rescale = 1;
      if (state.softmax[b](scores, scale_log2, rescale)) state.rescale(b, rescale);
#pragma unroll
      for (int n = 0; n < Config::kKeyBlocks; ++n) {
        const Words<2> pairs{Element::pair(scores[4 * n], scores[4 * n + 1]), Element::pair(scores[4 * n + 2], scores[4 * n + 3])};
        weights[b][n] = std::bit_cast<Short4>(pairs);
      }
    }
    if (any(Load::needs_care(values))) {
      multiply_values<true>(values, weights, state);
    } else {
      multiply_values<false>(values, weights, state);
    }
  }

  template <bool kCareful>
  __device__ __forceinline__ void multiply_values(const typename Load::Values& values,
                                                  const Short4 (&weights)[Config::kRowBlocks][Config::kKeyBlocks],
                                                  State<Config>& state) const {
#pragma unroll
    for (int n = 0; n < Config::kKeyBlocks; ++n) {
#pragma unroll
      for (int p = 0; p < Config::kPanels; ++p) {
        Words<Config::kChannels / 2> tokens[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) tokens[e] = Load::template widened<kCareful>(values, n, p, e);
#pragma unroll
        for (int x = 0; x < Config::kChannels; ++x) {
          const Short4 v = Load::operand_of(tokens, x);
#pragma unroll
          for (int b = 0; b < Config::kRowBlocks; ++b) {
            Float4& d = state.out[b][p * Config::kChannels + x];
            d = Element::multiply_add(v, weights[b][n], d);
          }
        }
      }
    }
  }

  const Params& params;
  const Work& work;
  const Rows<Config>& rows;
  const ScoreTransform<Wave>& transform;
  const float scale_log2;
  const Load load;
  Chunk queries[Config::kRowBlocks][Config::kSteps];
};

}  // namespace fovea::gpu::cdna::paged_attention
