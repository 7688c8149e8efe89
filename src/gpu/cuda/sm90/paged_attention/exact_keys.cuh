// SPDX-License-Identifier: Apache-2.0
/// Where the rows of a sequence's keys and values are, for rows that are computed again.
#pragma once

#include "gpu/cuda/sm90/dense/exact_row.cuh"
#include "gpu/cuda/sm90/paged_attention/params.hpp"

namespace fovea::gpu::sm90::paged_attention {

template <class Element>
struct PagedKeys {
  const Params& params;
  const std::int32_t* table;
  int kv_head;

  __device__ PagedKeys(const Params& params_, const WorkTile& work, int kv_head_)
      : params(params_), table(params.block_table + work.batch * params.table_stride), kv_head(kv_head_) {}

  __device__ KeyRow<Element> operator()(int key) const {
    const int entry = params.page.quotient(key), block = table[entry], token = key - entry * params.page.divisor;
    if (!params.has(block)) return {nullptr, nullptr};
    const auto in = [&](const ClippedRows& cache) {
      const detail::RowStrides& strides = cache.strides;
      return static_cast<const Element*>(cache.data) + block * strides.batch + token * strides.row + kv_head * strides.head;
    };
    return {in(params.k), in(params.v)};
  }
};

}  // namespace fovea::gpu::sm90::paged_attention
