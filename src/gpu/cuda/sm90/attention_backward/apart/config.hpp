// SPDX-License-Identifier: Apache-2.0
/// Constants of the kernel of dq, and the shared memory of its CTAs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/cuda/sm90/attention_backward/config.hpp"

namespace fovea::gpu::sm90::attention_backward {

inline constexpr int kQueryCells = 2;  // query tiles of a CTA of this kernel: each is a warpgroup's
inline constexpr int kRowTile = kQueryCells * kQueryTile;

/// `Of`: the Config of dk and dv.
template <class Of>
struct QueryConfig {
  using Element = typename Of::Element;
  static constexpr bool kSoftcap = Of::kSoftcap;
  static constexpr int kHeadDimQk = Of::kHeadDimQk, kHeadDimV = Of::kHeadDimV, kSlicesQk = Of::kSlicesQk, kSlicesV = Of::kSlicesV;
  static constexpr int kKeyTile = Of::kTuning.dq_key_tile;
  static constexpr int kKeyStages = Of::kTuning.dq_key_stages, kValueStages = Of::kTuning.dq_value_stages;
  static constexpr int kCellBytes = kQueryTile * kSliceBytes;  // of a slice: the rows of a warpgroup
  static constexpr int kQuerySliceBytes = kRowTile * kSliceBytes, kKeySliceBytes = kKeyTile * kSliceBytes;
  static constexpr int kQueryBytes = kSlicesQk * kQuerySliceBytes, kDoutBytes = kSlicesV * kQuerySliceBytes;
  static constexpr int kKeyBytes = kSlicesQk * kKeySliceBytes, kValueBytes = kSlicesV * kKeySliceBytes;
  static constexpr int kThreads = 128 * (kQueryCells + 1);
  static constexpr int kMathRegisters = 240, kLoadRegisters = 24;
  static_assert(kKeyTile % 16 == 0);
  static_assert(128 * (kQueryCells * kMathRegisters + kLoadRegisters) <= 65536);
};

template <class Config>
struct QueryStorage {
  alignas(1024) std::byte q[Config::kQueryBytes];  // (slice, query, 64); then dQ
  alignas(1024) std::byte dout[Config::kDoutBytes];
  alignas(1024) std::byte k[Config::kKeyStages][Config::kKeyBytes];
  alignas(1024) std::byte v[Config::kValueStages][Config::kValueBytes];
  // full: the producer's lane and the copy engine arrive; warps with queries wait. empty: a lane of each such warp arrives; the producer
  // waits.
  alignas(8) std::uint64_t q_full, k_full[Config::kKeyStages], k_empty[Config::kKeyStages];
  std::uint64_t v_full[Config::kValueStages], v_empty[Config::kValueStages];
};

}  // namespace fovea::gpu::sm90::attention_backward
