// SPDX-License-Identifier: Apache-2.0
/// Shared memory of a CTA, and the loads of queries, keys and values by all threads.
#pragma once

#include <cstddef>

#include "gpu/cuda/common/copy_async.cuh"
#include "gpu/cuda/common/quantized/scales.cuh"
#include "gpu/cuda/portable/attention/work.cuh"
#include "gpu/cuda/portable/quantized_attention/config.hpp"

namespace fovea::gpu::portable::quantized_attention {

using attention::WorkTile;
static_assert(sizeof(WorkTile) <= Tuning::kWorkBytes);
using Scales = gpu::Scales<Params, WorkTile>;

/// Rows are SwizzledRows.
template <class Config>
struct Storage {
  alignas(128) std::byte q[Config::kTuning.query_bytes()];
  alignas(128) std::byte k[Config::kStages][Config::kTuning.key_bytes()];
  alignas(128) std::byte v[Config::kStages][Config::kTuning.value_bytes(Config::kValueSize)];
  alignas(128) WorkTile work;
};

template <class Config>
class Loader {
 public:
  __device__ Loader(const Params& params_, Storage<Config>& storage_) : params(params_), storage(storage_) {}

  __device__ __forceinline__ void queries() const {
    const WorkTile& work = storage.work;
    const auto* from = attention::row_of_head<typename Config::Element>(params.q, work.batch, work.q_begin + work.token, work.head);
    copy<Config::kCodeColumns, Config::kRowTile>(storage.q, from, params.q, work.seq_q - work.token);
  }
  __device__ __forceinline__ void keys(int tile, int stage) const {
    load<Config::kCodeColumns, typename Config::Element>(storage.k[stage], storage.work.keys, params.k, tile);
  }
  __device__ __forceinline__ void values(int tile, int stage) const {
    load<Config::kValueColumns, typename Config::ValueElement>(storage.v[stage], storage.work.values, params.v, tile);
  }

 private:
  using Rows = attention::Rows<const void*>;

  template <int kColumns, class Element>
  __device__ __forceinline__ void load(const void* to, const void* first_row, const Rows& rows, int tile) const {
    const int key = tile * Config::kKeyTile;
    const Element* from = static_cast<const Element*>(first_row) + key * rows.strides.row;
    copy<kColumns, Config::kKeyTile>(to, from, rows, storage.work.seq_k - key);
  }
  template <int kColumns, int kRows, class Element>
  __device__ __forceinline__ void copy(const void* to, const Element* from, const Rows& rows, int valid) const {
    constexpr int kUsed = Config::kHeadDim * static_cast<int>(sizeof(Element)) / 2;
    RowCopy<kColumns, kRows, Config::kThreads, kUsed>()(shared_address(to), valid, Config::kHeadDim, rows.aligned,
                                                        [&](int row) { return from + row * rows.strides.row; });
  }

  const Params& params;
  Storage<Config>& storage;
};

}  // namespace fovea::gpu::portable::quantized_attention
