// SPDX-License-Identifier: Apache-2.0
/// Rows of a cache in a format of codes, for one tile: decoded to f32.
#include <array>

#include "cpu/attention/item.hpp"

namespace fovea::cpu {
namespace {

/// Decodes the rows of the item's heads, those of a token side by side. Plain rows are widened.
void decode_side(const Item& item, const KvCodes& side, const KvStrides& strides, const void* codes, const void* scales,
                 detail::KeyRange keys, float* decoded, Row* rows) {
  const KvCache& cache = *item.setup.kv_cache;
  std::array<Row, kMostDecodedKeys> scale_rows{};
  gather_rows(item, strides, codes, keys, rows);
  if (side.has_scales) gather_rows(item, side.scales, scales, keys, scale_rows.data());
  const auto count = static_cast<std::size_t>(keys.size());
  for (std::size_t i = 0; i < count; ++i) {
    const auto* from = static_cast<const std::byte*>(rows[i]);
    const auto* scale = static_cast<const std::byte*>(scale_rows[i]);
    rows[i] = decoded;
    for (int head = 0; head < item.heads; ++head, decoded += side.stride) {
      if (side.decode != nullptr) {
        side.decode({from + head * strides.head, side.has_scales ? scale + head * side.scales.head : nullptr, side.f16_scale}, decoded,
                    static_cast<int>(side.dim));
      } else {
        std::fill_n(decoded, side.dim, 0.0f);
        item.setup.rows->add_scaled[static_cast<std::size_t>(cache.rows_dtype)](decoded, from + head * strides.head, 1.0f, side.dim);
      }
    }
  }
}

}  // namespace

int gather_codes(const Item& item, detail::KeyRange keys, int buffer, Row* k, Row* v) {
  const KvCache& cache = *item.setup.kv_cache;
  float* decoded = item.scratch.decoded_kv[buffer];
  decode_side(item, cache.k, item.setup.k, item.call.k, item.call.k_scale_cache, keys, decoded, k);
  decode_side(item, cache.v, item.setup.v, item.call.v, item.call.v_scale_cache, keys, decoded + keys.size() * item.heads * cache.k.stride,
              v);
  return static_cast<int>(keys.size());
}

}  // namespace fovea::cpu
