// SPDX-License-Identifier: Apache-2.0
/// One row of a work tile by scalar arithmetic (gpu/cuda/common/exact_row.cuh), and the scales of scores.
#pragma once

#include <cfloat>

#include "gpu/common/score_transform.cuh"
#include "gpu/cuda/common/exact_row.cuh"
#include "gpu/cuda/common/packed_mask.cuh"
#include "gpu/cuda/sm90/dense/alibi_terms.cuh"
#include "gpu/cuda/sm90/dense/params.hpp"
#include "gpu/cuda/sm90/dense/storage.cuh"

namespace fovea::gpu::sm90::dense {

/// Scales and softcaps a score, before the mask. Used with Config::kTransform.
template <class Params>
__device__ inline float transformed(const Params& params, float score) {
  if (params.softcap == 0) return score * params.scale;
  return params.softcap * tanh_by_exp2<Warp>(score * params.inv_softcap);
}

/// The factor of a work tile's sequence and kv head.
__device__ inline float descale(const Descale& scale, const WorkTile& work, int heads_per_kv) {
  return scale.data == nullptr ? 1 : scale.data[work.batch * scale.batch_stride + work.head / heads_per_kv * scale.head_stride];
}

/// Factors of Q K^T: accumulators times `factor` are transformed and masked, and `log2` is the scale of
/// the softmax. Without a transform, `log2` is above 0 and finite, and `factor` is 1 or -1. It is NaN where the scale is: hidden scores,
/// which are minus infinity, then have no weight.
struct ScoreScale {
  float factor = 1, log2 = kLog2e;

  template <class Config>
  static __device__ ScoreScale of(const typename Config::Params& params, const WorkTile& work) {
    if (!Config::k8Bit) return {1, Config::kTransform ? kLog2e : params.scale_log2};
    const float scale = descale(params.q_scale, work, params.heads_per_kv) * descale(params.k_scale, work, params.heads_per_kv);
    if (Config::kTransform || isnan(scale)) return {scale, kLog2e};
    return {scale < 0 ? -1.0f : 1.0f, clamped_scale(fabsf(scale) * params.scale_log2)};
  }
};

template <class Rows>
__device__ std::int64_t row_offset(const Rows& rows, const WorkTile& work, int token_row, int head) {
  const detail::RowStrides& strides = rows.strides;
  return work.batch * strides.batch + token_row * strides.row + head * strides.head;
}

/// Rows of a work tile's keys and values in their tensors. Paged attention has PagedKeys.
template <class Element, class Params>
struct TensorKeys {
  const Params& params;
  const Element *keys, *values;

  __device__ TensorKeys(const Params& params_, const WorkTile& work, int kv_head)
      : params(params_), keys(first(params.k, work, kv_head)), values(first(params.v, work, kv_head)) {}

  __device__ KeyRow<Element> operator()(int key) const { return {keys + key * params.k.strides.row, values + key * params.v.strides.row}; }

 private:
  template <class Rows>
  static __device__ const Element* first(const Rows& rows, const WorkTile& work, int kv_head) {
    return static_cast<const Element*>(rows.data) + row_offset(rows, work, work.k_begin, kv_head);
  }
};

/// The bits of a row of a ragged batch.
template <class Params>
__device__ inline RowBits row_bits(const Params& params, const WorkTile& work, int token) {
  const int byte = params.bits.indptr == nullptr ? 0 : params.bits.indptr[work.batch];
  return RowBits::of(params.bits, {work.q_begin, byte, work.seq_k}, token);
}

template <class Config>
struct ExactRow {
  using Element = typename Config::Element;
  const typename Config::Params& params;
  const WorkTile& work;
  RowPlace at;
  int key_tile;

  static constexpr int kColumns = gpu::ExactRow<Element>::kColumns;

  /// Computes the weighted mean of the values that the row sees in the work tile, by a whole warp.
  __device__ void operator()(ScoreScale scale, float (&columns)[kColumns]) const {
    const int kv_head = at.head / params.heads_per_kv;
    const auto* q = static_cast<const Element*>(params.q.data) + row_offset(params.q, work, work.q_begin + at.token, at.head);
    const gpu::ExactRow<Element> exact{q, params.head_dim_qk, params.head_dim_v};
    const typename Config::Keys row_of(params, work, kv_head);
    const WorkTile::Keys seen = work.own_keys_of(at.token, key_tile);
    if constexpr (kAlibi<Config>) {
      exact(seen.begin, seen.end, scale.log2, row_of, biased_score(), columns);
      return;
    }
    const auto score_of = [&](float score, int) {
      if (Config::k8Bit) score *= scale.factor;
      return Config::kTransform ? transformed(params, score) : score;
    };
    if constexpr (kMasked<Config>) {
      const RowBits bits = row_bits(params, work, at.token);
      exact(seen.begin, seen.end, scale.log2, row_of, score_of, columns, [&](int key) { return bits.shows(key); });
    } else {
      exact(seen.begin, seen.end, scale.log2, row_of, score_of, columns);
    }
  }

 private:
  /// A score with ALiBi, which is finite unless it is NaN: the softmax of a row has no weight for minus infinity.
  __device__ auto biased_score() const {
    const float slope = slope_of(params, work) * params.alibi.units_of_slope;
    return [slope, diagonal = at.token + diagonal_offset(params, work), &params = params](float product, int key) {
      const float score = params.alibi.natural ? transformed(params, product) : product;
      const float sum = fmaf(-slope, fabsf(static_cast<float>(key - diagonal)), score);
      return sum == -INFINITY ? -FLT_MAX : sum;
    };
  }
};

}  // namespace fovea::gpu::sm90::dense
