// SPDX-License-Identifier: Apache-2.0
/// Q K^T of int8 codes, in integer accumulators, and their way to probabilities.
#pragma once

#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/common/quantized/softmax.cuh"
#include "gpu/cuda/sm90/dense/exact_row.cuh"
#include "gpu/cuda/sm90/quantized_attention/config.hpp"
#include "gpu/cuda/sm90/quantized_attention/work_scales.cuh"
#include "gpu/cuda/sm90/thread.cuh"
#include "gpu/cuda/sm90/wgmma.cuh"

namespace fovea::gpu::sm90::quantized_attention {

using dense::ScoreScale;
using Scales = gpu::Scales<Params, WorkTile>;

/// A lane's fragment of Q K^T: two query rows with one scale, and keys of kKeyBlocks blocks with one scale
/// each.
template <class Config>
class IntScores {
 public:
  static constexpr int kScores = Config::kKeyTile / 2, kBlocks = Config::kKeyBlocks;
  explicit __device__ IntScores(const Params& params_) : params(params_) {}

  int accumulators[kScores];

  /// Begins a work tile. `row`: the lane's first, in the query tile. Returns the scale of the softmax.
  __device__ __forceinline__ ScoreScale begin(const WorkTile& work, const typename WorkScales<Config>::Of& scales, int row) {
    const float both = Scales(params, work).log2_of(scales.query[row]);
    negative = both < 0;
    log2 = clamped_scale(fabsf(both));
    key_scales = scales.key[lane_index() % 4];
    last_block = (work.seq_k - 1) / static_cast<int>(Int8Groups::kKBlock);
    return {1, log2};
  }
  /// Loads the scales of a key tile, while its MMAs run. Keys past the sequence's last block are masked,
  /// so the scale of that block serves them.
  __device__ __forceinline__ void begin_tile(int tile) {
    const float* scale = key_scales + tile * kBlocks * params.key_block_stride;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      if (b > 0 && tile * kBlocks + b <= last_block) scale += params.key_block_stride;
      unit[b] = negative ? -*scale : *scale;
    }
  }

  /// Turns accumulators into probabilities, unrounded. Returns whether `out` is to be rescaled.
  template <class Softmax, class Mask>
  __device__ __forceinline__ bool to_probabilities(float (&scores)[kScores], Softmax& softmax, bool edge, const Mask& mask) {
    Exponents<kBlocks> exponents;
    if (edge) mask(accumulators);
    const bool follows = edge || !softmax.takes_sums(accumulators, unit, log2, exponents);
    if (!follows || softmax.follows_sums(accumulators, unit, log2, exponents)) {
      fence_operand(accumulators);  // keeps conversions in the basic block of the exponentials: both overlap
#pragma unroll
      for (int i = 0; i < kScores; ++i) scores[i] = static_cast<float>(accumulators[i]);
      softmax.exponentiate(scores, exponents.factor, exponents.offset, params.zero);
      fence_operand(scores);  // keeps the compiler from merging the ends of both branches
      return follows;
    }
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const float score = static_cast<float>(accumulators[i]) * unit[i * kBlocks / kScores];
      scores[i] = accumulators[i] == kHidden<int> ? kHidden<float> : score;
    }
    softmax.take_scores(scores, log2, exponents);
    softmax.exponentiate(scores, exponents.factor, exponents.offset, params.zero);
    return true;
  }

 private:
  const Params& params;
  const float* key_scales = nullptr;  // scale of the lane's first keys
  int last_block = 0;                 // the sequence's last block of keys
  bool negative = false;              // the scale of queries; its sign moves to the keys
  float log2 = 0, unit[kBlocks];
};

}  // namespace fovea::gpu::sm90::quantized_attention
