// SPDX-License-Identifier: Apache-2.0
#include "tiles.hpp"

#include "cpu/isa/tiles.hpp"

namespace fovea::cpu::FOVEA_ISA {
namespace {

enum class Elements { bf16, int8 };

template <Elements kElements>
void multiply(TileSizes sizes, void* c, const void* a, const void* b) {
  TileConfig config{};
  config.rows[0] = config.rows[1] = static_cast<std::uint8_t>(sizes.rows);
  config.rows[2] = static_cast<std::uint8_t>(sizes.depth);
  config.row_bytes[0] = config.row_bytes[2] = static_cast<std::uint16_t>(4 * sizes.columns);
  config.row_bytes[1] = static_cast<std::uint16_t>(4 * sizes.depth);
  tile_configure(config);
  tile_load<0>(c, kTileRowBytes);
  tile_load<1>(a, kTileRowBytes);
  tile_load<2>(b, kTileRowBytes);
  if constexpr (kElements == Elements::bf16) {
    tile_multiply_bf16<0, 1, 2>();
  } else {
    tile_multiply_int8<0, 1, 2>();
  }
  tile_store<0>(c, kTileRowBytes);
  tile_release();
}

}  // namespace

extern constexpr TileProducts kProducts{multiply<Elements::bf16>, multiply<Elements::int8>};

}  // namespace fovea::cpu::FOVEA_ISA
