// SPDX-License-Identifier: Apache-2.0
/// A latent cache in hostile memory. Tokens become readable one by one; all other bytes are NaN in every format.
#pragma once

#include <vector>

#include "fovea/latent_attention.hpp"
#include "hostile_tensor.hpp"
#include "noise.hpp"
#include "vast.hpp"

namespace fovea::check {

struct LatentCacheShape {
  CacheFormat format = CacheFormat::rows;
  DType dtype = DType::bf16;  ///< of plain rows
  std::int64_t blocks = 1, page = 64, row = 576, kv_heads = 1;
  std::int64_t gap = 8;  ///< elements after each row, and more after each token and block; packed: any gap leaves odd addresses
  Vast vast{};           ///< the first channel of each token
};

class LatentCache {
 public:
  explicit LatentCache(const LatentCacheShape& shape);

  const LatentCacheDesc& desc() const { return desc_; }
  const HostileTensor& tensor() const { return rows_; }
  std::int64_t slots() const { return shape_.blocks * shape_.page; }

  /// Gives a token values of variance 1, if it has none yet.
  void fill(std::int64_t slot, Random& random);
  void set(std::int64_t slot, std::int64_t channel, float value);  ///< plain rows, head 0

  /// K of a token in f32, as a matrix unit would take it: `row` values, without the scale of e4m3 rows.
  void read(std::int64_t slot, std::int64_t head, float* values) const;

  /// Bytes of all tokens that have values: an operation that reads each of them must move as many.
  double bytes() const;

 private:
  std::uint8_t* block_of(std::int64_t slot) const { return rows_.as<std::uint8_t>() + slot / shape_.page * desc_.block_stride; }
  std::int64_t offset(std::int64_t slot, std::int64_t head) const { return rows_.offset(slot / shape_.page, slot % shape_.page, head); }

  LatentCacheShape shape_;
  LatentCacheDesc desc_{};
  HostileTensor rows_{};
  std::vector<char> filled_{};
};

}  // namespace fovea::check
