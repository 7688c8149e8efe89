// SPDX-License-Identifier: Apache-2.0
/// Constants of a forward kernel that follow from its row of tuning.hpp.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "gpu/cuda/sm90/attention/params.hpp"
#include "gpu/cuda/sm90/attention/tuning.hpp"
#include "gpu/cuda/sm90/clipped_rows.hpp"

namespace fovea::gpu::sm90::dense {
template <class Element, class Params>
struct TensorKeys;      // exact_row.cuh
struct NoWorkTileData;  // storage.cuh
}  // namespace fovea::gpu::sm90::dense

namespace fovea::gpu::sm90::attention {

constexpr int slices_of(int row_bytes) { return (row_bytes + kSliceBytes - 1) / kSliceBytes; }

/// Element_: of queries and keys. Results are of 16 bits, or of 32.
template <class Element_, class ValueElement_, Tuning kTuning_>
struct TileConfig {
  using Element = Element_;
  using ValueElement = ValueElement_;
  using WorkTileData = dense::NoWorkTileData;
  static constexpr Tuning kTuning = kTuning_;
  static constexpr bool kCodes = std::is_same_v<Element, std::int8_t>;  // products of queries and keys are integers
  /// Values lie in tiles of their own (value_tiles.hpp), and each key tile's are summed by themselves.
  static constexpr bool k8BitValues = sizeof(ValueElement) == 1;
  static constexpr int kHeadDimQk = kTuning.head_dim_qk, kHeadDimV = kTuning.head_dim_v;
  static constexpr int kSlicesQk = slices_of(kHeadDimQk * sizeof(Element)), kSlicesV = slices_of(kHeadDimV * 2);
  static constexpr int kKeyTile = kTuning.key_tile, kRowTile = kTuning.row_tile();
  static constexpr int kKeyStages = kTuning.key_stages, kValueStages = kTuning.value_stages, kQueryBuffers = kTuning.query_buffers;
  static constexpr int kMathThreads = 128 * kTuning.warpgroups, kThreads = kMathThreads + 128;
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kMathRegisters = kTuning.math_registers;
  static constexpr int kLoadRegisters = (kLaunchRegisters * kThreads - kMathRegisters * kMathThreads) / 128 / 8 * 8;
  static constexpr int kQuerySliceBytes = kRowTile * kSliceBytes, kKeySliceBytes = kKeyTile * kSliceBytes;
  // Bytes in a key tile from eight rows to the next, and from a slice of columns to the next.
  static constexpr int kKeyGroupBytes = 8 * kSliceBytes, kValueGroupBytes = kKeyGroupBytes, kKeySliceStep = kKeySliceBytes;
  static constexpr int kQueryBytes = std::max(kSlicesQk, kSlicesV) * kQuerySliceBytes;  // results leave through the same buffer
  static constexpr int kKeyBytes = kSlicesQk * kKeySliceBytes;
  static constexpr int kValueBytes = k8BitValues ? kKeyTile * kHeadDimV : kSlicesV * kKeySliceBytes;
  static constexpr int kContracted = 32 / sizeof(Element);  // elements of a product
  static constexpr bool kOverlap = kTuning.overlap;
  /// Whether the first scores of a work tile are computed beside the last values of the one before. It takes a second query buffer.
  static constexpr bool kOverlapWork = kOverlap && kQueryBuffers > 1;
  static_assert(kKeyTile % kContracted == 0 && kHeadDimQk % kContracted == 0 && kHeadDimV % 16 == 0);
  static_assert(!k8BitValues || !kOverlap);      // each key tile's values have sums of their own
  static_assert(kOverlap || !kTuning.pingpong);  // warpgroups skip different key tiles
  static_assert(kLoadRegisters >= 24);
};

/// kTransform_: scores are softcapped, or their scale is negative. Paged attention has other Params and Keys, and another order of key
/// tiles.
template <class Element, int kTuning_, bool kTransform_>
struct Config : TileConfig<Element, Element, tunings_of(sizeof(Element) == 1)[kTuning_]> {
  using Params = attention::Params;
  using Keys = dense::TensorKeys<Element, Params>;
  static constexpr bool k8Bit = sizeof(Element) == 1;
  using Result = std::conditional_t<k8Bit, __nv_bfloat16, Element>;   // or f32, where inputs are e4m3
  static constexpr bool kTransform = kTransform_, kOwnScale = k8Bit;  // scores of a work tile have a scale of their own
  static constexpr bool kOwnEdges = false;                            // whether warpgroups find the key tiles that they need not mask
};

}  // namespace fovea::gpu::sm90::attention
