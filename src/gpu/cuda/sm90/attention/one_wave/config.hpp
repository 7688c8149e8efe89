// SPDX-License-Identifier: Apache-2.0
/// Parameters of a launch, and constants of a kernel from its row of tuning.hpp.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "gpu/cuda/common/attention_params.hpp"
#include "gpu/cuda/sm90/attention/one_wave/tuning.hpp"
#include "gpu/cuda/sm90/clipped_rows.hpp"
#include "gpu/launch.hpp"
#include "op/common/band.hpp"
#include "op/common/division.hpp"

namespace fovea::gpu::sm90::dense {
template <class Element, class Params>
struct TensorKeys;  // exact_row.cuh
}

namespace fovea::gpu::sm90::one_wave {

/// A tensor without tensor maps.
struct PlainRows {
  const void* data = nullptr;
  detail::RowStrides strides{};
};

struct Params : AttentionParams {
  PlainRows q, k, v, out, lse;  // lse.data: or null
  detail::NarrowMask narrow_mask{};
  int packed_shift = 0;              // log2 of the query heads that share a query tile
  int cluster_shift = 0;             // log2 of the CTAs that share the keys of a query tile
  detail::FastDivmod heads_of_kv{};  // quotient: kv head of a query head
  float zero = 0;                    // 0, unknown to the compiler: OnlineSoftmax orders instructions with it
};

/// kTransform_: scores are softcapped, or their scale is negative.
template <class Element_, int kTuning_, bool kTransform_>
struct Config {
  using Element = Element_;
  using Params = one_wave::Params;
  using Keys = dense::TensorKeys<Element, Params>;
  static constexpr Tuning kTuning = kTunings[kTuning_];
  static constexpr bool kTransform = kTransform_, k8Bit = false;
  static constexpr int kHeadDimQk = kTuning.head_dim_qk, kHeadDimV = kTuning.head_dim_v;
  static constexpr int kSlicesQk = kHeadDimQk / kSliceColumns, kSlicesV = kHeadDimV / kSliceColumns;
  static constexpr int kRowTile = kTuning.row_tile(), kKeyTile = kTuning.key_tile, kKeyTiles = kTuning.key_tiles;
  static constexpr int kKeyGroups = kTuning.key_groups, kThreads = 2 * kRowTile * kKeyGroups, kWarps = kThreads / 32;
  static constexpr bool kSharedKeys = kKeyGroups == 2;  // by warpgroups, else by the CTAs of a cluster
  static constexpr bool kInTurns = kTuning.turns > 1;   // a key tile takes the place of an earlier one
  static constexpr int kQuerySliceBytes = kRowTile * kSliceBytes, kKeySliceBytes = kKeyTile * kSliceBytes;
  static constexpr int kQueryBytes = std::max(kSlicesQk, kSlicesV) * kQuerySliceBytes;  // then the results of these rows
  static constexpr int kPartials = kWarps - kWarps / kTuning.ctas;                      // of the other CTAs of a cluster
  static constexpr int kPieces = kHeadDimV / 8 + 1;                                     // of 16 bytes, in a lane's partial result
  static constexpr int kKeyBytes = kSlicesQk * kKeySliceBytes, kValueBytes = kSlicesV * kKeySliceBytes;
  static_assert(kHeadDimQk % kSliceColumns == 0 && kHeadDimV % kSliceColumns == 0);
  static_assert((kKeyTile & (kKeyTile - 1)) == 0 && kWarps % kTuning.ctas == 0 && (kSharedKeys ? kRowTile == 64 : kRowTile == 128));
};

/// The launch of a kernel, which the build instantiates for the rows of tuning.hpp. `grid`: the query
/// tiles, the packed heads and the sequences.
template <class Config>
CudaStatus launch_attend(const Params& params, dim3 grid, int ordinal, Stream stream);

}  // namespace fovea::gpu::sm90::one_wave
