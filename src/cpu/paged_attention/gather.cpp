// SPDX-License-Identifier: Apache-2.0
/// Rows of a cache in a format of codes, for one tile: decoded to f32.
#include <array>

#include "cpu/attention/item.hpp"

namespace fovea::cpu {
namespace {

/// K or V of a call.
struct Side {
  const KvCodes& codes;
  const KvStrides& strides;
  const void *cache, *scales;
};

/// Decodes the rows of the item's heads, those of a token side by side. Plain rows are widened.
void decode_side(const Item& item, const Side& side, detail::KeyRange keys, float* decoded, Row* rows) {
  const KvCodes& codes = side.codes;
  const auto widen = item.setup.rows->add_scaled[static_cast<std::size_t>(item.setup.kv_cache->rows_dtype)];
  std::array<Row, kMostDecodedKeys> scale_rows{};
  gather_rows(item, side.strides, side.cache, keys, rows);
  if (codes.has_scales) gather_rows(item, codes.scales, side.scales, keys, scale_rows.data());
  const auto count = static_cast<std::size_t>(keys.size());
  for (std::size_t i = 0; i < count; ++i) {
    const auto* from = static_cast<const std::byte*>(rows[i]);
    const auto* scale = static_cast<const std::byte*>(scale_rows[i]);
    rows[i] = decoded;
    for (int head = 0; head < item.heads; ++head, decoded += codes.stride) {
      if (codes.decode != nullptr) {
        codes.decode({from + head * side.strides.head, codes.has_scales ? scale + head * codes.scales.head : nullptr, codes.f16_scale},
                     decoded, static_cast<int>(codes.dim));
      } else {
        std::fill_n(decoded, codes.dim, 0.0f);
        widen(decoded, from + head * side.strides.head, 1.0f, codes.dim);
      }
    }
  }
}

}  // namespace

int gather_codes(const Item& item, detail::KeyRange keys, int buffer, Row* k, Row* v) {
  const KvCache& cache = *item.setup.kv_cache;
  float* decoded = item.scratch.decoded_kv[buffer];
  decode_side(item, {cache.k, item.setup.k, item.call.k, item.call.k_scale_cache}, keys, decoded, k);
  decoded += keys.size() * item.heads * cache.k.stride;
  decode_side(item, {cache.v, item.setup.v, item.call.v, item.call.v_scale_cache}, keys, decoded, v);
  return static_cast<int>(keys.size());
}

}  // namespace fovea::cpu
