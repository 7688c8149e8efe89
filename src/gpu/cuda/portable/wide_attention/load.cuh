// SPDX-License-Identifier: Apache-2.0
/// Shared memory of a CTA, and the loads of queries, keys and values by all threads.
#pragma once

#include <cstddef>

#include "gpu/cuda/common/copy_async.cuh"
#include "gpu/cuda/portable/wide_attention/work.cuh"

namespace fovea::gpu::portable::wide_attention {

static_assert(sizeof(WorkTile) <= Tuning::kWorkBytes);

/// Rows are SwizzledRows.
template <class Config>
struct Storage {
  alignas(128) std::byte q[Config::kTuning.query_bytes()];  // then the results of these rows
  alignas(128) std::byte k[Config::kTuning.tile_bytes()];
  alignas(128) std::byte v[Config::kTuning.tile_bytes()];
  alignas(128) std::byte p[Config::kTuning.probability_bytes()];
  float4 exchange[Config::kTuning.warps()][Config::kTuning.exchange_bytes() / (32 * sizeof(float4))][32];  // of a lane
  alignas(16) float of_rows[Config::kRowTile][kColumnWarps];  // a number of each warp of a row group: largest scores, then sums
  alignas(128) WorkTile work;
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
    RowCopy<kHeadDim, Config::kRowTile, Config::kThreads>()(
        shared_address(storage.q), valid, params.head_dim_qk, params.q.aligned,
        [&](int row) { return from + (row >> params.packed_shift) * params.q.strides.row + (row & packed) * params.q.strides.head; });
  }
  __device__ __forceinline__ void keys(int tile) const {
    load(shared_address(storage.k), params.k, storage.work.keys, params.head_dim_qk, tile, kNaNRow);
  }
  __device__ __forceinline__ void values(int tile) const {
    load(shared_address(storage.v), params.v, storage.work.values, params.head_dim_v, tile, kZeroRow);
  }

 private:
  __device__ __forceinline__ void load(std::uint32_t to, const Rows<const void*>& rows, const void* first, int columns, int tile,
                                       const ConstantRow& outside) const {
    const int key = tile * Config::kKeyTile;
    RowCopy<kHeadDim, Config::kKeyTile, Config::kThreads>()(to, storage.work.seq_k - key, columns, rows.aligned, [&](int row) {
      return key_row<Config>(params, storage.work, rows, first, key + row, outside);
    });
  }

  const Params& params;
  Storage<Config>& storage;
};

}  // namespace fovea::gpu::portable::wide_attention
