// SPDX-License-Identifier: Apache-2.0
/// Shared memory of a CTA, and the loads of queries, keys and values by all threads.
#pragma once

#include <cstddef>
#include <type_traits>

#include "gpu/cuda/common/copy_async.cuh"
#include "gpu/cuda/portable/attention/config.hpp"
#include "gpu/cuda/portable/attention/work.cuh"

namespace fovea::gpu::portable::attention {

static_assert(sizeof(BiasedWorkTile) <= Tuning::kWorkBytes);

/// Rows are SwizzledRows.
template <class Config>
struct Storage {
  alignas(128) std::byte q[Config::kTuning.query_bytes()];  // then the results of these rows
  alignas(128) std::byte k[Config::kStages][Config::kTuning.key_bytes()];
  alignas(128) std::byte v[Config::kStages][Config::kTuning.value_bytes()];
  alignas(128) std::conditional_t<Config::kBiased, BiasedWorkTile, WorkTile> work;
};

/// Copies rows of whole SwizzledRows<kColumns>, `stride` elements apart, by kThreads threads. Their addresses are sums of one product.
template <int kColumns, int kRows, int kThreads, class Element>
__device__ __forceinline__ void copy_whole_rows(std::uint32_t to, const Element* first, int begin, std::int64_t stride) {
  using Layout = SwizzledRows<kColumns>;
  constexpr int kStep = kThreads / Layout::kSpanChunks;  // rows that threads copy at once
  static_assert(kRows % kStep == 0 && kStep % 8 == 0);
  const int row = static_cast<int>(threadIdx.x / Layout::kSpanChunks), chunk = static_cast<int>(threadIdx.x % Layout::kSpanChunks);
  const Element* from = first + (begin + row) * stride + chunk * 8;
  to += static_cast<std::uint32_t>(Layout::offset(row, chunk));
#pragma unroll
  for (int i = 0; i < kRows / kStep; ++i, from += kStep * stride) {
#pragma unroll
    for (int span = 0; span < Layout::kSpans; ++span) {
      copy_async(to + i * kStep * Layout::kRowBytes + span * Layout::kSpanBytes, from + span * Layout::kSpanChunks * 8);
    }
  }
}

template <class Config>
class Loader {
 public:
  using Element = typename Config::Element;

  __device__ Loader(const Params& params_, Storage<Config>& storage_, const WorkTile& work_)
      : params(params_), storage(storage_), work(work_) {}

  __device__ __forceinline__ void queries() const {
    const Element* from = row_of_head<Element>(params.q, work.batch, work.q_begin + work.token, work.head);
    const int valid = (work.seq_q - work.token) << params.packed_shift, packed = (1 << params.packed_shift) - 1;
    const std::uint32_t to = shared_address(storage.q);
    if (packed == 0 && params.q.aligned && valid >= Config::kRowTile && params.head_dim_qk == Config::kHeadDimQk) {
      copy_whole_rows<Config::kHeadDimQk, Config::kRowTile, Config::kThreads>(to, from, 0, params.q.strides.row);
      return;
    }
    RowCopy<Config::kHeadDimQk, Config::kRowTile, Config::kThreads>()(to, valid, params.head_dim_qk, params.q.aligned, [&](int row) {
      return from + (row >> params.packed_shift) * params.q.strides.row + (row & packed) * params.q.strides.head;
    });
  }
  __device__ __forceinline__ void keys(int tile, int stage) const {
    load<Config::kHeadDimQk>(shared_address(storage.k[stage]), params.k, work.keys, params.head_dim_qk, tile);
  }
  __device__ __forceinline__ void values(int tile, int stage) const {
    load<Config::kHeadDimV>(shared_address(storage.v[stage]), params.v, work.values, params.head_dim_v, tile);
  }

 private:
  template <int kColumns>
  __device__ __forceinline__ void load(std::uint32_t to, const Rows<const void*>& rows, const void* first_row, int columns,
                                       int tile) const {
    const int key = tile * Config::kKeyTile, valid = work.seq_k - key;
    const auto* first = static_cast<const Element*>(first_row);
    if (rows.aligned && valid >= Config::kKeyTile && columns == kColumns) {
      copy_whole_rows<kColumns, Config::kKeyTile, Config::kThreads>(to, first, key, rows.strides.row);
      return;
    }
    RowCopy<kColumns, Config::kKeyTile, Config::kThreads>()(to, valid, columns, rows.aligned,
                                                            [&](int row) { return first + (key + row) * rows.strides.row; });
  }

  const Params& params;
  Storage<Config>& storage;
  const WorkTile& work;
};

}  // namespace fovea::gpu::portable::attention
