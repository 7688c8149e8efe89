// SPDX-License-Identifier: Apache-2.0
/// Factors of scores, and which keys a row sees.
#pragma once

#include "gpu/common/score_transform.cuh"
#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/packed_mask.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/portable/paged_attention/operands.cuh"

namespace fovea::gpu::portable::paged_attention {

/// The scale of a kv head's keys joins that of the scores.
__device__ inline ScoreTransform<Warp> score_transform(const Params& params, int kv_head) {
  const float k_scale = params.k.scale == nullptr ? 1.0f : params.k.scale[kv_head * params.k.scale_stride];
  return ScoreTransform<Warp>::make(params.scale * k_scale, params.softcap, params.inv_softcap * k_scale);
}

/// The keys that a query row sees.
struct VisibleKeys {
  int begin, end;

  __device__ static VisibleKeys of_row(const Params& params, const WorkTile& work, int row) {
    const int token = params.group.quotient(work.row + row);
    return {max(token + work.low, work.begin), min(token + work.high + 1, work.end)};
  }
  __device__ float masked(float score, int key) const { return key >= begin && key < end ? score : -INFINITY; }
};
/// Where the bits of a work tile's sequence begin.
__device__ inline MaskBegin mask_begin(const Params& params, const WorkTile& work) {
  const int byte = params.bits.indptr == nullptr ? 0 : params.bits.indptr[work.sequence];
  return {work.q_begin, byte, min(max(params.kv_len[work.sequence], 0), params.seq_k)};
}
/// The bits of a row of the query tile.
__device__ inline RowBits bits_of_row(const Params& params, const MaskBegin& begin, const WorkTile& work, int row) {
  return RowBits::of(params.bits, begin, params.group.quotient(work.row + row));
}

/// Key tiles [first, last), of which every row sees every key.
struct FullTiles {
  int first, last;

  __device__ bool hold(int tile) const { return tile >= first && tile < last; }
};

/// Scale of a key's codes, as a factor and a shift of products with halves, and of a value's.
template <class Config>
struct TokenScale {
  using Cache = typename Config::Cache;
  float factor, zero;  // zero: the factor times the zero point

  __device__ static TokenScale of_key(std::uint32_t scales, int key) {
    const TokenScale read = of_value(scales, key);
    return {read.factor * (Config::Format::kZeroPoints ? 0x1p12f : 1.0f), read.zero * read.factor};  // 2^12: Loader::convert_queries
  }
  /// Its zero point is not multiplied.
  __device__ static TokenScale of_value(std::uint32_t scales, int key) {
    const std::uint32_t bits = load_shared_32(scales + Config::kKeyScales * key);
    if constexpr (Config::Format::kZeroPoints) return {__uint_as_float(bits & ~0xfu), static_cast<float>(bits & 0xf)};
    return {__uint_as_float(bits), 0};
  }
  /// The score from a product with the row whose elements have the sum `sum`.
  __device__ float score(float product, float row_factor, float sum) const {
    if constexpr (Config::Format::kZeroPoints) return row_factor * fmaf(product, factor, -zero * sum);
    return product * (row_factor * factor);
  }
};

}  // namespace fovea::gpu::portable::paged_attention
