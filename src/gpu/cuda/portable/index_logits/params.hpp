// SPDX-License-Identifier: Apache-2.0
/// The parameters of the kernel.
#pragma once

#include <cstdint>

#include "fovea/indexer.hpp"
#include "op/index_logits/problem.hpp"

namespace fovea::gpu::portable::indexer {

inline constexpr int kWarps = 8, kThreads = 32 * kWarps;
inline constexpr int kRowsOfMma = 16;
inline constexpr int kMmas = 2;  ///< along the keys of a warp
inline constexpr int kKeysOfWarp = kMmas * kRowsOfMma, kKeyTile = kWarps * kKeysOfWarp;
inline constexpr int kHeadTile = 64;  ///< heads of a query that lie in shared memory together

struct Params {
  IndexLogitsArgs args;  ///< those in use; null otherwise
  detail::IndexLogitsShape shape;
  std::int64_t key_tiles, rows_of_group;
  bool aligned;  ///< rows of q and k, to 16 bytes
};

}  // namespace fovea::gpu::portable::indexer
