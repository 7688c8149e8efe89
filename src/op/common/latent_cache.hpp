// SPDX-License-Identifier: Apache-2.0
/// A latent cache as every operation on it sees it, plain or packed.
#pragma once

#include "fovea/latent_attention.hpp"
#include "op/common/checks.hpp"
#include "op/common/strides.hpp"

namespace fovea::detail {

inline constexpr std::int64_t kLatentDim = 512;  ///< V, and the part of K that is not rotary

struct LatentCacheView {
  CacheFormat format{};
  DType dtype{};  ///< of plain rows; bf16 (what they decode to) when packed
  std::int64_t blocks = 0, page = 0, kv_heads = 1;
  std::int64_t row = 0;           ///< values in a row: 576 or 512
  CacheStrides strides{};         ///< plain rows, in elements
  std::int64_t block_stride = 0;  ///< packed, in bytes
  std::int32_t alignment = 1;     ///< bytes, of the pointer

  constexpr std::int64_t slots() const { return blocks * page; }
};

/// Checks the description called `name` and turns it into a view.
LatentCacheView check_latent_cache(Checker& check, std::string_view name, const LatentCacheDesc& desc);

/// Where alignments come from: the rows of a plain cache. A packed one is plain bytes, and whatever its `rows` hold is never looked at.
inline TensorDesc rows_of(const LatentCacheDesc& desc) {
  return packed_format(desc.format) == nullptr ? desc.rows : TensorDesc{.dtype = DType::e4m3};
}

}  // namespace fovea::detail
