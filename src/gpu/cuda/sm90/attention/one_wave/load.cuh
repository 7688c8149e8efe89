// SPDX-License-Identifier: Apache-2.0
/// Copies of tiles into swizzled shared memory by all threads of a CTA. Without tensor maps, no
/// descriptor is encoded for a call or fetched by a CTA.
#pragma once

#include "gpu/cuda/common/work_tile.cuh"
#include "gpu/cuda/sm90/attention/one_wave/storage.cuh"
#include "gpu/cuda/sm90/shared_memory.cuh"

namespace fovea::gpu::sm90::one_wave {

template <class Config>
class Loader {
 public:
  __device__ Loader(const Params& params_, Storage<Config>& storage_, const WorkTile& work_)
      : params(params_), storage(storage_), work(work_) {}

  __device__ __forceinline__ void load_queries() const {
    const int tokens = Config::kRowTile >> params.packed_shift, valid = min(tokens, work.seq_q - work.token);
    const Element* first = first_row(params.q, work.q_begin + work.token, work.head);
    const auto offset = [&](int row) {
      const RowPlace at = WorkTile{}.place(row, params.packed_shift);
      return at.token * params.q.strides.row + at.head * params.q.strides.head;
    };
    copy<Config::kRowTile, Config::kSlicesQk>(storage.q, first, valid << params.packed_shift, params.head_dim_qk, offset);
  }

  /// Loads key tiles [begin, end) and their values, or as many as there is room for. Barriers have been
  /// initialised.
  __device__ __forceinline__ void load_keys(int begin, int end) const {
    copy_async_arrive(shared_address(&storage.q_full));
    if (Config::kInTurns) end = min(end, begin + Config::kKeyTiles);
#pragma unroll 1
    for (int tile = begin; tile < end; ++tile) load_key_tile(tile, tile - begin);
  }
  __device__ __forceinline__ void load_key_tile(int tile, int at) const {
    const int key = tile * Config::kKeyTile, kv_head = params.heads_of_kv.quotient(work.head);
    load_tile<Config::kSlicesQk>(storage.k[at], params.k, key, kv_head, params.head_dim_qk);
    copy_async_arrive(shared_address(&storage.k_full[at]));
    load_tile<Config::kSlicesV>(storage.v[at], params.v, key, kv_head, params.head_dim_v);
    copy_async_arrive(shared_address(&storage.v_full[at]));
  }

 private:
  using Element = typename Config::Element;

  __device__ const Element* first_row(const PlainRows& rows, int row, int head) const {
    const detail::RowStrides& strides = rows.strides;
    return static_cast<const Element*>(rows.data) + work.batch * strides.batch + row * strides.row + head * strides.head;
  }

  template <int kSlices>
  __device__ __forceinline__ void load_tile(std::byte* to, const PlainRows& rows, int key, int kv_head, int columns) const {
    const auto offset = [&](int row) { return row * rows.strides.row; };
    copy<Config::kKeyTile, kSlices>(to, first_row(rows, work.k_begin + key, kv_head), work.seq_k - key, columns, offset);
  }

  /// Rows from `valid` on and columns from `columns` on become zeros and are not read. Eight lanes share
  /// a slice of a row.
  template <int kRows, int kSlices, class Offset>
  static __device__ __forceinline__ void copy(std::byte* to, const Element* from, int valid, int columns, const Offset& offset) {
    constexpr int kStep = Config::kThreads / 8;
    static_assert(kRows % kStep == 0 && kStep % 8 == 0);
    const int chunk = static_cast<int>(threadIdx.x) % 8, first = static_cast<int>(threadIdx.x) / 8;
    const std::uint32_t at = shared_address(to) + first * kSliceBytes + (chunk ^ (first % 8)) * 16;
#pragma unroll
    for (int i = 0; i < kRows / kStep; ++i) {
      const int row = first + i * kStep;
      const Element* row_from = from + (row < valid ? offset(row) : 0) + chunk * 8;
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) {
        const bool present = row < valid && chunk * 8 + slice * kSliceColumns < columns;
        copy_async(at + slice * kRows * kSliceBytes + i * kStep * kSliceBytes, row_from + slice * kSliceColumns, present);
      }
    }
  }

  const Params& params;
  Storage<Config>& storage;
  const WorkTile& work;
};

}  // namespace fovea::gpu::sm90::one_wave
