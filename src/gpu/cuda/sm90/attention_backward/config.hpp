// SPDX-License-Identifier: Apache-2.0
/// The backward pass: parameters of a launch, constants of a kernel from its row of tuning.hpp, launches.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "gpu/cuda/common/gradient/params.hpp"
#include "gpu/cuda/sm90/attention_backward/tuning.hpp"
#include "gpu/cuda/sm90/clipped_rows.hpp"
#include "gpu/launch.hpp"
#include "op/common/division.hpp"

namespace fovea::gpu::sm90::attention_backward {

using namespace gradient;

inline constexpr int kWarpgroupKeys = 64;  // keys of a warpgroup, which stores their dk and dv

struct Params : GradientParams {
  static constexpr bool kOrderedDq = true;  // key tiles may add to dq, one after the other
  ClippedRows q, k, v, dout, dq, dk, dv;
  ClippedRows dq_k, dq_v;  // k and v with the key tiles of a separate kernel of dq
  PlainRows out;
  int group = 128;  // GradientOrder
  // Workspace. A kernel of all gradients has dq_sums and dq_semaphore.
  float* dq_sums = nullptr;     // [heads][query_tiles][query tile x padded head dim], as dq.cuh orders it
  int* dq_semaphore = nullptr;  // [heads][query_tiles]: key tiles that have added to dq_sums
  int* ticket = nullptr;        // ticket of the next key tile
};

/// kSoftcap_: scores are softcapped.
template <class Element_, int kTuning_, bool kSoftcap_>
struct Config {
  using Element = Element_;
  using Params = attention_backward::Params;
  static constexpr bool kLists = false;  // a block mask lists query tiles
  static constexpr Tuning kTuning = kTunings[kTuning_];
  static constexpr bool kSoftcap = kSoftcap_, kSeparateDq = kTuning.separate_dq(), kDqInScoreWarpgroups = kTuning.dq_in_score_warpgroups();
  static constexpr int kKeyTile = kTuning.key_tile;
  static constexpr int kHeadDimQk = kTuning.head_dim_qk, kHeadDimV = kTuning.head_dim_v;
  static constexpr int kSlicesQk = detail::ceil_div(kHeadDimQk, kSliceColumns);
  static constexpr int kSlicesV = detail::ceil_div(kHeadDimV, kSliceColumns);
  static constexpr int kStages = 2;                                        // stages of Q and dO
  static constexpr int kScoreStages = kDqInScoreWarpgroups ? 1 : kStages;  // stages of dS
  static constexpr int kQuerySliceBytes = kQueryTile * kSliceBytes, kKeySliceBytes = kKeyTile * kSliceBytes;
  static constexpr int kKeyBytes = kSlicesQk * kKeySliceBytes, kValueBytes = kSlicesV * kKeySliceBytes;
  static constexpr int kQueryBytes = kSlicesQk * kQuerySliceBytes, kDoutBytes = kSlicesV * kQuerySliceBytes;
  static constexpr int kScoreBytes = kKeyTile * kSliceBytes;  // dS: [key][query]
  static constexpr int kSumsOfTile = kQueryTile * kHeadDimQk;
  static constexpr int kSumsStages = kDqInScoreWarpgroups ? 1 : kHeadDimQk <= 64 ? 3 : 2;  // of dQ on its way to global memory
  // Warpgroups: two for scores, dV and dK; mostly one for dQ; one for the producer and the emitters.
  static constexpr bool kDqWarpgroup = !kSeparateDq && !kDqInScoreWarpgroups;
  static constexpr int kScoreWarpgroups = 2, kThreads = kDqWarpgroup ? 512 : 384;
  static constexpr int kDqColumns = kHeadDimQk <= 96 ? kHeadDimQk : kSliceColumns;  // of the dQ warpgroup at a time
  static constexpr int kScoreRegisters = !kDqWarpgroup ? 240 : kHeadDimQk <= 96 ? 192 : 208;
  static constexpr int kQueryRegisters = kHeadDimQk <= 96 ? 104 : 72, kLoadRegisters = 24;
  static_assert(kHeadDimQk % 32 == 0 && kHeadDimV % 32 == 0);
  static_assert(128 * (2 * kScoreRegisters + (kDqWarpgroup ? kQueryRegisters : 0) + kLoadRegisters) <= 65536);
  static_assert(kKeyTile == 64 * (kSeparateDq ? 1 : kScoreWarpgroups));
  static_assert(!kSeparateDq || kHeadDimQk == kHeadDimV);  // each role stages results in the tile that it alone reads
};

/// Before differentiate: RowStats of each query row, and zeros in counters and flags.
CudaStatus launch_prepare(const Params& params, DType dtype, Stream stream);

/// dq, dk and dv: by one kernel, or by two with Config::kSeparateDq. Instantiated by the build, for each
/// row of tuning.hpp.
template <class Config>
CudaStatus launch_differentiate(const Params& params, int ordinal, Stream stream);

/// After differentiate: rows that masked values or a sink have made NaN, and the gradient of sinks.
CudaStatus launch_finish(const Params& params, DType dtype, Stream stream);

}  // namespace fovea::gpu::sm90::attention_backward
