// SPDX-License-Identifier: Apache-2.0
/// Constants of a forward kernel, from its row of tuning.hpp, and its launch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "gpu/cuda/sm90/attention/tuning.hpp"
#include "gpu/cuda/sm90/dense/params.hpp"
#include "gpu/launch.hpp"

namespace fovea::gpu::sm90::dense {
template <class Element, class Params>
struct TensorKeys;      // exact_row.cuh
struct NoWorkTileData;  // storage.cuh
}  // namespace fovea::gpu::sm90::dense

namespace fovea::gpu::sm90::attention {

using dense::Params;

constexpr int slices_of(int row_bytes) { return (row_bytes + kSliceBytes - 1) / kSliceBytes; }

/// Tiles, stages and registers. Element_: type of queries and keys.
template <class Element_, class ValueElement_, Tuning kTuning_>
struct TileConfig {
  using Element = Element_;
  using ValueElement = ValueElement_;
  using WorkTileData = dense::NoWorkTileData;
  static constexpr Tuning kTuning = kTuning_;
  static constexpr bool kCodes = std::is_same_v<Element, std::int8_t>;  // Q K^T is integers
  /// MMAs read values from value tiles, and accumulators of each key tile are promoted to f32 sums.
  static constexpr bool k8BitValues = sizeof(ValueElement) == 1;
  static constexpr int kHeadDimQk = kTuning.head_dim_qk, kHeadDimV = kTuning.head_dim_v;
  static constexpr int kSlicesQk = slices_of(kHeadDimQk * sizeof(Element)), kSlicesV = slices_of(kHeadDimV * 2);
  static constexpr int kKeyTile = kTuning.key_tile, kRowTile = kTuning.row_tile();
  static constexpr int kCluster = kTuning.cluster, kKeyBox = kKeyTile / kCluster;  // kKeyBox: keys that a CTA loads
  static constexpr int kKeyStages = kTuning.key_stages, kValueStages = kTuning.value_stages, kQueryBuffers = kTuning.query_buffers;
  static constexpr int kMathThreads = 128 * kTuning.warpgroups, kThreads = kMathThreads + 128;
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kMathRegisters = kTuning.math_registers;
  static constexpr int kLoadRegisters = (kLaunchRegisters * kThreads - kMathRegisters * kMathThreads) / 128 / 8 * 8;
  static constexpr int kQuerySliceBytes = kRowTile / kTuning.warpgroups * kSliceBytes, kKeySliceBytes = kKeyTile * kSliceBytes;
  // Bytes between swizzle atoms of eight keys in a key tile, and between its slices of columns.
  static constexpr int kKeyGroupBytes = 8 * kSliceBytes, kValueGroupBytes = kKeyGroupBytes, kKeySliceStep = kKeySliceBytes;
  static constexpr int kQueryBytes = kSlicesQk * kQuerySliceBytes;  // of a warpgroup
  static constexpr int kKeyBytes = kSlicesQk * kKeySliceBytes;
  static constexpr int kValueBytes = k8BitValues ? kKeyTile * kHeadDimV : kSlicesV * kKeySliceBytes;
  static constexpr int kRawStages = kTuning.raw_stages, kRawSlices = slices_of(kHeadDimV * sizeof(ValueElement));
  static constexpr int kMmaK = 32 / sizeof(Element);
  /// Whether Q K^T of a key tile overlaps P V of the one before, also across work tiles.
  static constexpr bool kOverlap = kTuning.overlap;
  static constexpr bool kRowsInTurn = !kOverlap && kTuning.warpgroups == 3;  // dense::rows_of_warpgroup()
  static constexpr bool kStagedResults = stages_results(kTuning, sizeof(Element) == 2);
  static constexpr bool kTickets = false;     // work tiles may be drawn, by dense::Tickets
  static constexpr bool kShortFirst = false;  // of query tiles, under a causal mask
  static_assert(kKeyTile % kMmaK == 0 && kHeadDimQk % kMmaK == 0 && kHeadDimV % 16 == 0);
  static_assert(k8BitValues || kRawStages == 0);
  static_assert(kCluster == 1 || (!k8BitValues && kKeyBox % 8 == 0));  // a swizzle atom has 8 rows
  static_assert(!k8BitValues || !kOverlap);                            // promotion of a key tile needs its own wait
  static_assert(kOverlap || !kTuning.pingpong);                        // warpgroups skip different key tiles
  static_assert(kLoadRegisters >= 24);
};

/// kTransform_: scores are softcapped, or their scale is negative. Paged attention has other Params and
/// Keys, and another order of keys in shared memory.
template <class Element, int kTuning_, bool kTransform_>
struct Config : TileConfig<Element, Element, Tuning(tunings_of(sizeof(Element) == 1)[kTuning_])> {
  using Params = dense::Params;
  using Keys = dense::TensorKeys<Element, Params>;
  static constexpr bool k8Bit = sizeof(Element) == 1;
  using Result = std::conditional_t<k8Bit, __nv_bfloat16, Element>;        // or f32, with e4m3 inputs
  static constexpr bool kTransform = kTransform_, kOwnScale = k8Bit;       // each work tile has its scale
  static constexpr bool kOwnEdges = !tunings_of(k8Bit)[kTuning_].overlap;  // warpgroups find their own masked key tiles
  static constexpr bool kTickets = true, kShortFirst = short_tile_first(tunings_of(k8Bit)[kTuning_], k8Bit);
};

/// The launch of a kernel, which the build instantiates for the rows of tuning.hpp.
template <class Config>
CudaStatus launch_attend(const Params& params, int ctas, int ordinal, Stream stream);

}  // namespace fovea::gpu::sm90::attention
