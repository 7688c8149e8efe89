// SPDX-License-Identifier: Apache-2.0
/// Constants of a backward kernel, from its row of tuning.hpp; parameters and launches of the kernels.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "gpu/cuda/common/gradient/params.hpp"
#include "gpu/cuda/common/score_bias.hpp"
#include "gpu/cuda/portable/attention_backward/biased/tuning.hpp"
#include "gpu/cuda/portable/attention_backward/tuning.hpp"
#include "gpu/launch.hpp"
#include "op/common/division.hpp"

namespace fovea::gpu::portable::attention_backward {

struct Params;

template <class Element_, Tuning kTuning, Gradients kGradients>
struct TunedConfig {
  using Element = Element_;
  using Params = attention_backward::Params;
  static constexpr bool kBiased = false;  // ALiBi, a bias or dropout
  static constexpr bool kLists = false;   // a block mask lists tiles
  static constexpr bool kRowsAreQueries = kGradients == Gradients::dq;
  static constexpr bool kOfScores = kGradients != Gradients::dv;                                    // dq or dk: by ds
  static constexpr bool kOfValues = kGradients == Gradients::dv || kGradients == Gradients::dk_dv;  // dv: by p
  static constexpr int kHeadDimQk = kTuning.head_dim_qk, kHeadDimV = kTuning.head_dim_v;
  static constexpr Tiles kTiles = kRowsAreQueries ? kTuning.queries : kTuning.keys;
  static constexpr int kBlocks = kTiles.blocks, kWarpRows = 16 * kBlocks, kRows = kTiles.rows();
  static constexpr int kColumns = kTiles.columns, kStages = kTiles.stages, kThreads = 32 * kWarps;
  static_assert(kHeadDimQk % 32 == 0 && kHeadDimV % 32 == 0 && kColumns % 16 == 0 && 64 % kColumns == 0);
  static_assert(kStages == 1 || kStages == 2);
};

template <class Element, int kIndex, Gradients kGradients>
using Config = TunedConfig<Element, Tuning(kTunings[kIndex]), kGradients>;

template <class Element, int kIndex, Gradients kGradients>
struct BiasedConfig : TunedConfig<Element, Tuning(kBiasedTunings[kIndex]), kGradients> {
  static constexpr bool kBiased = true;
};

template <int kColumns, int kWide>
struct DqSums;

/// Constants of the kernel of all three gradients. Its rows are keys.
template <class Element_, Tuning kTuning>
struct FusedConfig {
  using Element = Element_;
  using Params = attention_backward::Params;
  static constexpr bool kBiased = false;
  static constexpr bool kRowsAreQueries = false, kOfScores = true, kOfValues = true;
  static constexpr int kHeadDimQk = kTuning.head_dim_qk, kHeadDimV = kTuning.head_dim_v;
  static constexpr int kKeyWarps = kTuning.fused.key_warps, kQueryWarps = 2;
  static constexpr int kWarps = kKeyWarps * kQueryWarps, kThreads = 32 * kWarps;
  static constexpr int kWarpQueries = kTuning.fused.warp_queries;
  static constexpr int kBlocks = 2, kWarpRows = 16 * kBlocks, kRows = kTuning.fused.keys();
  static constexpr int kColumns = kTuning.fused.queries(), kStages = 2;
  static constexpr int kScoreStages = kTuning.fused.ds_stages;
  static constexpr int kDqColumns = kColumns * kHeadDimQk / kWarps / 32;  // of a warp, with 32 queries
  using Sums = DqSums<kHeadDimQk, kDqColumns>;
  static_assert(kDqColumns == 16 || kDqColumns == 32);
  static_assert((kColumns == 64 || kColumns == 128) && kHeadDimQk % 64 == 0 && kHeadDimV % 64 == 0);
  static_assert(kScoreStages == 1 || kScoreStages == 2);
};

template <class Element, int kIndex>
struct BiasedFusedConfig : FusedConfig<Element, Tuning(kBiasedTunings[kIndex])> {
  static constexpr bool kBiased = true;
};

using namespace gradient;

struct Tensor : PlainRows {
  bool aligned = false;  // every row, to 16 bytes
};

/// Key tiles of a batch that is not ragged: a CTA finds its own without a division.
struct FixedKeyTiles {
  int count = 0;                           // of a head; 0 where ragged
  int low = 0, high = 0;                   // the band: query i sees key j iff low <= j - i <= high
  int beside = 1;                          // heads whose key tiles are interleaved
  detail::FastDivmod group{}, kv_heads{};  // group: key tiles of `beside` heads
};

struct Params : GradientParams {
  static constexpr bool kOrderedDq = false;  // no two CTAs add to the same gradient
  Tensor q, k, v, out, dout, dq, dk, dv;
  FixedKeyTiles fixed{};     // of the fused kernel
  float* dq_sums = nullptr;  // workspace of the fused kernel: [heads][query_tiles][rows of DqSums]
  ScoreBiasParams bias{};    // of kernels with Config::kBiased, as the next two
  void* dbias = nullptr;     // or null
  detail::BiasStrides dbias_strides{}, dbias_extents{};
  int dbias_group = 1;  // key tiles of a CTA
};

/// Computes RowStats of each query row, and clears the flags of the other kernels.
CudaStatus launch_prepare(const Params& params, DType dtype, Stream stream);

/// The kernels of a row of tuning.hpp.
template <class Element, int kRow>
CudaStatus launch_differentiate(const Params& params, int ordinal, Stream stream);

/// The same with ALiBi, a bias or dropout, by a row of biased/tuning.hpp.
template <class Element, int kRow>
CudaStatus launch_biased(const Params& params, int ordinal, Stream stream);

template <class Element, int kRow>
CudaStatus launch_biased_fused(const Params& params, int ordinal, Stream stream);

/// The gradient of the bias.
template <class Element, int kRow>
CudaStatus launch_dbias(const Params& params, int ordinal, Stream stream);

/// The fused kernel of a row of tuning.hpp. Sums of dq are cleared before and rounded after it.
template <class Element, int kRow>
CudaStatus launch_fused(const Params& params, int ordinal, Stream stream);

/// With score terms finish adds them too.
CudaStatus launch_finish_biased(const Params& params, DType dtype, int multiprocessors, Stream stream);

/// Recomputes rows that an MMA has made NaN although they see no NaN; the gradient of sinks.
CudaStatus launch_finish(const Params& params, DType dtype, int multiprocessors, Stream stream);

}  // namespace fovea::gpu::portable::attention_backward
