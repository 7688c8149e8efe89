// SPDX-License-Identifier: Apache-2.0
/// The ways of queries, keys and values into shared memory, by all threads.
#pragma once

#include "gpu/cuda/common/copy_async.cuh"
#include "gpu/cuda/portable/quantized_attention/storage.cuh"

namespace fovea::gpu::portable::quantized_attention {

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
