// SPDX-License-Identifier: Apache-2.0
/// Products of codes, which are sums of integers, and how they become probabilities.
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

/// A lane's part of a key tile: two query rows with one scale, and keys of kKeyBlocks blocks with one scale each.
template <class Config>
class Sums {
 public:
  static constexpr int kScores = Config::kKeyTile / 2, kBlocks = Config::kKeyBlocks;
  explicit __device__ Sums(const Params& params_) : params(params_) {}

  int products[kScores];

  /// `row`: of the query tile, the lane's first. Returns what scores are multiplied by before they are exponents.
  __device__ __forceinline__ ScoreScale begin(const WorkTile& work, const typename WorkScales<Config>::Of& scales, int row) {
    const float both = Scales(params, work).log2_of(scales.query[row]);
    negative = both < 0;
    log2 = Scales::clamped(fabsf(both));
    key_scales = scales.key[lane_index() % 4];
    last_block = (work.seq_k - 1) / static_cast<int>(Int8Groups::kKBlock);
    return {1, log2};
  }
  /// Beside the products of a key tile. Where the last block of a sequence has ended, its scale will do: these keys are masked.
  __device__ __forceinline__ void begin_tile(int tile) {
    const float* scale = key_scales + tile * kBlocks * params.key_block_stride;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      if (b > 0 && tile * kBlocks + b <= last_block) scale += params.key_block_stride;
      unit[b] = negative ? -*scale : *scale;
    }
  }

  /// Products become probabilities, unrounded. Returns whether accumulators are to be rescaled.
  template <class Softmax, class Mask>
  __device__ __forceinline__ bool take(float (&scores)[kScores], Softmax& softmax, bool edge, const Mask& mask) {
    Exponents<kBlocks> exponents;
    if (edge) mask(products);
    const bool follows = edge || !softmax.takes_sums(products, unit, log2, exponents);
    if (!follows || softmax.follows_sums(products, unit, log2, exponents)) {
      fence_operand(products);  // conversions stay in one block with the exponentials, so that both overlap
#pragma unroll
      for (int i = 0; i < kScores; ++i) scores[i] = static_cast<float>(products[i]);
      softmax.exponentiate(scores, exponents.factor, exponents.offset, params.zero);
      fence_operand(scores);  // else the compiler makes one end of both branches
      return follows;
    }
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const float score = static_cast<float>(products[i]) * unit[i * kBlocks / kScores];
      scores[i] = products[i] == kHidden<int> ? kHidden<float> : score;
    }
    softmax.take_scores(scores, log2, exponents);
    softmax.exponentiate(scores, exponents.factor, exponents.offset, params.zero);
    return true;
  }

 private:
  const Params& params;
  const float* key_scales = nullptr;  // of the lane's first keys
  int last_block = 0;                 // of the sequence's keys
  bool negative = false;              // the scale of queries: its sign goes to the keys
  float log2 = 0, unit[kBlocks];
};

}  // namespace fovea::gpu::sm90::quantized_attention
