// SPDX-License-Identifier: Apache-2.0
/// Products of single tiles, by the processor and emulated (tiles.cpp, which is compiled for each).
#pragma once

#include <cstdint>

namespace fovea::cpu {

/// Rows of A and C, columns of B and C, and groups of four bytes of a row of A.
struct TileSizes {
  int rows = 16, columns = 16, depth = 16;
};

/// C, A and B have rows of 64 bytes. C is loaded, added to, and stored.
using MultiplyTiles = void (*)(TileSizes sizes, void* c, const void* a, const void* b);

struct TileProducts {
  MultiplyTiles bf16, int8;
};

namespace processor_tiles {
extern const TileProducts kProducts;
}
namespace emulated_tiles {
extern const TileProducts kProducts;
}

}  // namespace fovea::cpu
