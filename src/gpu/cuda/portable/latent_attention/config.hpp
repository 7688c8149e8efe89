// SPDX-License-Identifier: Apache-2.0
/// Constants of the kernels by element, head dim and rows of a query tile; stages and CTAs that fit a device; the launches.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "gpu/cuda/portable/latent_attention/params.hpp"
#include "gpu/cuda/portable/latent_attention/tuning.hpp"
#include "gpu/launch.hpp"

namespace fovea::gpu::portable::latent_attention {

inline constexpr int kMostStages = 4;

/// The warps of a row group share its 16 query rows. Each multiplies some columns of some keys; the sums of these products are the scores,
/// which every warp of the group gets. Each then multiplies all probabilities with its own columns of the values.
template <class Element_, int kHeadDim_, int kRowGroups_, int kMostCtas_>
struct Config {
  using Element = Element_;
  static constexpr bool kBlocks = false, kCoded = false;  // params.coded_row says whether rows are coded
  static constexpr int kHeadDim = kHeadDim_, kRowGroups = kRowGroups_, kMostCtas = kMostCtas_, kKeys = 32;
  static constexpr int kStages = kMostStages;  // at most
  static constexpr int kRowTile = 16 * kRowGroups;
  static constexpr int kGroupWarps = kWarps / kRowGroups;
  static constexpr int kParts = std::min(kGroupWarps, 4);   // of a key's columns
  static constexpr int kKeyParts = kGroupWarps / kParts;    // of a tile's keys
  static constexpr int kPartKeys = kKeys / kKeyParts;       // keys that a warp multiplies
  static constexpr int kSteps = kHeadDim / 16 / kParts;     // their steps of 16 columns
  static constexpr int kColumns = kValueDim / kGroupWarps;  // of the values that a warp multiplies
  static constexpr int kStageBytes = 2 * kKeys * kHeadDim;  // a key tile
  static constexpr int kExchangeBytes = kRowGroups * kParts * 16 * kKeys * static_cast<int>(sizeof(float));
  static_assert(kHeadDim % 64 == 0 && kPartKeys % 16 == 0 && kColumns % 64 == 0);
};

/// Two row groups of 32 query rows have four warps each. A warp multiplies 32 keys, by every second step of 16 columns, and then all
/// probabilities of its group with its own columns of the values. Queries lie in shared memory, but for the last steps.
/// `kCoded`: rows are coded, else plain. Beside one stage of codes all queries fit.
template <class Element_, int kHeadDim_, int kMostCtas_, bool kCoded_>
struct BlockConfig {
  using Element = Element_;
  static constexpr bool kBlocks = true, kCoded = kCoded_;
  static constexpr int kHeadDim = kHeadDim_, kRowTile = 64, kMostCtas = kMostCtas_, kKeys = 64;
  static constexpr int kRowGroups = 2, kGroupWarps = kWarps / kRowGroups;
  static constexpr int kParts = 2, kSteps = kHeadDim / 16 / kParts;  // of a key's columns
  static constexpr int kRegisterSteps = kCoded ? 0 : 2;              // whose queries lie in registers
  static constexpr int kSharedColumns = kHeadDim - 16 * kParts * kRegisterSteps;
  static constexpr int kColumns = kValueDim / kGroupWarps;
  static constexpr int kStages = kCoded ? 1 : 2;
  static constexpr int kStageBytes = 2 * kKeys * kHeadDim;
  static constexpr int kExchangeBytes =
      2 * kRowTile * kSharedColumns + kWarps * 16 * 32 * static_cast<int>(sizeof(float)) + 6 * kRowTile * static_cast<int>(sizeof(float));
  static_assert(kSharedColumns % 64 == 0);
};

/// `kRow`: of the tuning table.
template <class Element, int kHeadDim, int kRow>
using ConfigOf =
    std::conditional_t<kTunings[kRow].key_tile == 64, BlockConfig<Element, kHeadDim, kTunings[kRow].most_ctas, kTunings[kRow].coded>,
                       Config<Element, kHeadDim, kTunings[kRow].row_tile / 16, kTunings[kRow].most_ctas>>;

inline constexpr int kWorkBytes = 128;  // of two work tiles

/// Bytes of a coded row in shared memory: as it is stored, then its scales if they lie elsewhere. The first has no scales, and the last has
/// room for plain rows, which may be mixed with coded ones. An odd number of chunks spreads rows over banks.
inline constexpr int kE4m3Row = 592, kPackedRow = 656, kMixedRow = 1168, kScalesAt = 576;

/// Shared memory before the stages: products, sources of keys, work tiles.
template <class Config>
inline constexpr int kFixedBytes = Config::kExchangeBytes + kMostStages* Config::kKeys + kWorkBytes;

/// `coded_row`: 0 for plain rows.
template <class Config>
constexpr int shared_bytes(int stages, int coded_row) {
  return kFixedBytes<Config> + (coded_row > 0 ? Config::kStageBytes + stages * Config::kKeys * coded_row : stages * Config::kStageBytes);
}

/// Stages in shared memory and CTAs of a multiprocessor.
struct Shape {
  int stages = 0, ctas = 1;
};

/// Several CTAs of two stages or more if they fit, else one of as many as fit. Without a fit, `stages` is 0. Blocks have two stages of
/// plain rows, or one of codes.
template <class Config>
constexpr Shape shape_of(int shared_bytes_per_block, int shared_bytes_per_multiprocessor, int coded_row) {
  constexpr int kReserved = 1024;  // by the system, for each CTA
  if (Config::kBlocks && Config::kCoded != (coded_row > 0)) return {};
  for (int ctas = Config::kMostCtas; ctas > 0; --ctas) {
    const int least = Config::kBlocks ? Config::kStages : std::min(ctas, 2);
    for (int stages = Config::kStages; stages >= least; --stages) {
      const int bytes = shared_bytes<Config>(stages, coded_row);
      if (bytes <= shared_bytes_per_block && ctas * (bytes + kReserved) <= shared_bytes_per_multiprocessor) return {stages, ctas};
    }
  }
  return {};
}

/// The launch of a kernel, which the build instantiates for the rows of tuning.hpp.
template <class Config>
CudaStatus launch_attend(const Params& params, int ordinal, Stream stream);

/// Combines partial results: after a launch with more than one split, unless query tiles stay whole. `row_tiles`: of a kv head, at most.
CudaStatus launch_combine(const Params& params, int row_tile, int row_tiles, Stream stream);

}  // namespace fovea::gpu::portable::latent_attention
