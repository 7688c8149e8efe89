// SPDX-License-Identifier: Apache-2.0
/// One row of attention by scalar arithmetic, which multiplies no value that the row does not see. A product of tiles cannot: where a value
/// that only other rows see is not finite, this is the way back. The row has a softmax of its own: its scores are rounded otherwise than
/// those of an MFMA, and large ones differ by more than an exponent bears.
#pragma once

#include "gpu/common/score_transform.cuh"
#include "gpu/common/softmax.cuh"
#include "gpu/hip/cdna/paged_attention/work.hpp"
#include "gpu/hip/cdna/softmax.hpp"

namespace fovea::gpu::cdna::paged_attention {

template <class Config>
class ExactRow {
 public:
  using Element = typename Config::Element;
  using Cache = typename Config::Cache;
  using Storage = typename Element::Storage;

  __device__ ExactRow(const Params& params_, const Work& work_, const ScoreTransform<Wave>& scores_)
      : params(params_), work(work_), scores(scores_) {}

  /// Stores the row's result, its weighted mean of values times `share`, by a whole wave: column 64 c + l in lane l.
  __device__ __forceinline__ void operator()(int token, int head, float share) const {
    const auto* q = static_cast<const Storage*>(params.q) + before_rows(work, params.q_strides) + token * params.q_strides.row +
                    head * params.q_strides.head;
    SerialSoftmax<Wave> softmax{scores.scale_log2};
    float columns[kColumns] = {};
    const int end = std::min(token + work.high + 1, work.seq_k);
#pragma unroll 1
    for (int key = std::max(token + work.low, 0); key < end; ++key) {
      const std::uint8_t *k = row_of(params.k_cache, params.k, key), *v = row_of(params.v_cache, params.v, key);
      float score = 0;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int column = c * kLanes + lane();
        if (Config::within(column, params.head_dim_qk)) score = fmaf(Element::to_f32(q[column]), Cache::at(k, column), score);
      }
      const float weight = softmax(scores(sum_of_wave(score)), columns);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int column = c * kLanes + lane();
        if (is_value(column)) columns[c] = fmaf(weight, Cache::at(v, column), columns[c]);
      }
    }
    Storage* to = static_cast<Storage*>(params.out) + before_rows(work, params.out_strides) + token * params.out_strides.row +
                  head * params.out_strides.head;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int column = c * kLanes + lane();
      if (is_value(column)) to[column] = Element::from_f32(share == 0 ? 0.0f : columns[c] / softmax.sum * share);
    }
  }

 private:
  static constexpr int kColumns = Config::kTiles.head_dim / kLanes;

  __device__ __forceinline__ bool is_value(int column) const {
    return column < Config::kTiles.value_dim && Config::within(column, params.head_dim_v);
  }

  __device__ __forceinline__ const std::uint8_t* row_of(const void* cache, const detail::CacheStrides& strides, int key) const {
    const int page = params.page.quotient(key), slot = key - page * params.page.divisor;
    const int block = params.block_table == nullptr ? 0 : params.block_table[work.batch * params.table_stride + page];
    return static_cast<const std::uint8_t*>(cache) +
           (before_keys(params, work, strides) + block * strides.block + slot * strides.token + work.kv_head * strides.head) *
               Cache::kBytes;
  }

  const Params& params;
  const Work& work;
  const ScoreTransform<Wave>& scores;
};

}  // namespace fovea::gpu::cdna::paged_attention
