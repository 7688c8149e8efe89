// SPDX-License-Identifier: Apache-2.0
/// Sizes of tiles, in a header that needs nothing of CUDA.
#pragma once

namespace fovea::gpu::portable::paged_attention {

inline constexpr int kLimit = 1 << 30;  // rows of q, work tiles, slots of a page: they are counted in ints
inline constexpr int kWarps = 4, kThreads = 32 * kWarps;
inline constexpr int kWarpKeys = 16, kTileKeys = kWarps * kWarpKeys, kLog2TileKeys = 6;  // each warp loads 16 keys of a tile
static_assert(kTileKeys == 1 << kLog2TileKeys);
inline constexpr int kNarrowRows = 8, kMiddleRows = 16, kWideRows = 64;  // of a query tile
inline constexpr int kWorkBytes = 128;                                   // of two work tiles

}  // namespace fovea::gpu::portable::paged_attention
