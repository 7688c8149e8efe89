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

template <class Config>
class Loader {
 public:
  using Element = typename Config::Element;

  __device__ Loader(const Params& params_, Storage<Config>& storage_) : params(params_), storage(storage_) {}

  __device__ __forceinline__ void queries() const {
    const WorkTile& work = storage.work;
    const Element* from = row_of_head<Element>(params.q, work.batch, work.q_begin + work.token, work.head);
    const int valid = (work.seq_q - work.token) << params.packed_shift, packed = (1 << params.packed_shift) - 1;
    RowCopy<Config::kHeadDimQk, Config::kRowTile, Config::kThreads>()(
        shared_address(storage.q), valid, params.head_dim_qk, params.q.aligned,
        [&](int row) { return from + (row >> params.packed_shift) * params.q.strides.row + (row & packed) * params.q.strides.head; });
  }
  __device__ __forceinline__ void keys(int tile, int stage) const {
    load<Config::kHeadDimQk>(shared_address(storage.k[stage]), params.k, storage.work.keys, params.head_dim_qk, tile);
  }
  __device__ __forceinline__ void values(int tile, int stage) const {
    load<Config::kHeadDimV>(shared_address(storage.v[stage]), params.v, storage.work.values, params.head_dim_v, tile);
  }

 private:
  template <int kColumns>
  __device__ __forceinline__ void load(std::uint32_t to, const Rows<const void*>& rows, const void* first_row, int columns,
                                       int tile) const {
    const int key = tile * Config::kKeyTile;
    const Element* from = static_cast<const Element*>(first_row) + key * rows.strides.row;
    RowCopy<kColumns, Config::kKeyTile, Config::kThreads>()(to, storage.work.seq_k - key, columns, rows.aligned,
                                                            [&](int row) { return from + row * rows.strides.row; });
  }

  const Params& params;
  Storage<Config>& storage;
};

}  // namespace fovea::gpu::portable::attention
