// SPDX-License-Identifier: Apache-2.0
/// The epilogue of a warp: lse, normalisation, and stores of its columns of the results.
#pragma once

#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/common/named_barrier.cuh"
#include "gpu/cuda/portable/wide_attention/exact_row.cuh"
#include "gpu/cuda/portable/wide_attention/load.cuh"
#include "gpu/cuda/portable/wide_attention/softmax.cuh"

namespace fovea::gpu::portable::wide_attention {

/// Barrier of the warps of a row group.
template <class Config>
__device__ __forceinline__ void group_barrier(int group) {
  named_sync(1 + group, 32 * kColumnWarps);
}

template <class Config>
class Epilogue {
 public:
  using Softmax = SharedSoftmax<Config::kOwnKeys / 2>;
  using Element = typename Config::Element;
  static constexpr int kBlocks = Config::kBlocks, kOut = Config::kColumns / 2;

  __device__ Epilogue(const Params& params_, Storage<Config>& storage_)
      : params(params_),
        storage(storage_),
        work(storage_.work),
        lane(static_cast<int>(threadIdx.x) % 32),
        group(static_cast<int>(threadIdx.x) / 32 / kColumnWarps),
        member(static_cast<int>(threadIdx.x) / 32 % kColumnWarps),
        first_column(member * Config::kColumns) {}

  /// `out` is relative to 2^(maximum * scale_log2).
  __device__ __forceinline__ void operator()(Softmax (&softmax)[kBlocks], const float (&out)[kBlocks][kOut]) const {
    add_sums(softmax);
    const float scale_log2 = score_transform(params).scale_log2;
    // Masked values, or all values with an infinite sink, have weight 0, and 0 * NaN is NaN.
    const bool leaks = work.full_first > work.first || work.full_last < work.last || params.sink != nullptr;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      float factor[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float base = softmax[b].maximum[r] * scale_log2;
        factor[r] = normaliser(b, r, softmax[b].sum[r], base);
        if (member == 0) store_lse(b, r, lse_of(softmax[b].sum[r], base) * kLn2);
      }
      if (params.splits.count > 1) {
        store_partial(b, out[b], factor);
      } else {
        stage(b, out[b], factor);
      }
      const RowPair rows{{lanes_not_finite(out[b], 0), lanes_not_finite(out[b], 1)},
                         {factor[0] * softmax[b].sum[0], factor[1] * softmax[b].sum[1]}};
      if (leaks && (rows.lanes[0] | rows.lanes[1]) != 0) compute_again(params, storage, b, rows);
    }
    __syncwarp();  // all of the warp's results are in its part of the queries' place
    if (params.splits.count == 1) store();
  }

 private:
  using StagedRows = SwizzledRows<kHeadDim>;

  __device__ RowPlace place(int row) const { return work.place(row, params.packed_shift); }
  __device__ int row(int block, int r) const { return group * Config::kGroupRows + 16 * block + lane_row(lane) + 8 * r; }

  /// Leaves the sums of whole rows in each lane. They are those of all warps of the row group.
  __device__ __forceinline__ void add_sums(Softmax (&softmax)[kBlocks]) const {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      softmax[b].reduce_sum();
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (lane % 4 == 0) storage.of_rows[row(b, r)][member] = softmax[b].sum[r];
      }
    }
    group_barrier<Config>(group);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float4 of = *reinterpret_cast<const float4*>(storage.of_rows[row(b, r)]);
        softmax[b].sum[r] = (of.x + of.y) + (of.z + of.w);
      }
    }
  }

  /// Factor of a row's accumulators, which are relative to 2^base. With splits the combining kernel
  /// adds the sink's share.
  __device__ __forceinline__ float normaliser(int block, int r, float sum, float base) const {
    if (params.sink != nullptr && params.splits.count == 1) {
      const RowPlace at = place(row(block, r));
      const float sink = exp2f(fmaf(params.sink[at.head], kLog2e, -base));
      return sum == 0 ? 0 : 1 / (sum + sink);
    }
    return sum == 0 ? 0 : __fdividef(1, sum);
  }

  __device__ __forceinline__ void store_lse(int block, int r, float value) const {
    const RowPlace at = place(row(block, r));
    if (lane % 4 != 0 || at.token >= work.seq_q) return;
    if (params.splits.count > 1) {
      params.splits.lse[partial_row(at)] = value;
    } else if (params.lse != nullptr) {
      params.lse[work.offset(params.lse_strides, at)] = value;
    }
  }
  __device__ std::int64_t partial_row(RowPlace at) const {
    const std::int64_t first = params.cu_seqlens_q != nullptr ? work.q_begin : std::int64_t{work.batch} * params.seq_q;
    return params.splits.cell(work.split, first + at.token, at.head);
  }

  /// Address of a staged result: results overwrite the queries.
  __device__ std::uint32_t staged(int of_row, int column) const {
    return shared_address(storage.q) + static_cast<std::uint32_t>(StagedRows::offset(of_row, column / 8) + column % 8 * 2);
  }
  __device__ __forceinline__ void stage(int block, const float (&out)[kOut], const float (&factor)[2]) const {
#pragma unroll
    for (int i = 0; i < kOut; i += 2) {
      const int r = row_of(i);
      store_shared_32(staged(row(block, r), first_column + column_of(i) + lane_column(lane)),
                      pack<Element>(out[i] * factor[r], out[i + 1] * factor[r]));
    }
  }

  /// The warp's columns, by chunks of 16 bytes where all rows are aligned to them.
  __device__ __forceinline__ void store() const {
    constexpr int kLanes = Config::kColumns / 8, kRowsAtOnce = 32 / kLanes;
    Element* first = row_of_head<Element>(params.out, work.batch, work.q_begin, 0);
    const int column = first_column + lane % kLanes * 8;
    if (column >= params.head_dim_v) return;
#pragma unroll 4
    for (int i = 0; i < Config::kGroupRows; i += kRowsAtOnce) {
      const int of_row = group * Config::kGroupRows + i + lane / kLanes;
      const RowPlace at = place(of_row);
      if (at.token >= work.seq_q) continue;
      Element* to = first + at.token * params.out.strides.row + at.head * params.out.strides.head + column;
      const uint4 chunk = load_shared_128(staged(of_row, column));
      if (params.out.aligned) {
        *reinterpret_cast<uint4*>(to) = chunk;
      } else {
        store_elements(to, chunk);
      }
    }
  }
  static __device__ void store_elements(Element* to, uint4 chunk) {
    const std::uint32_t words[] = {chunk.x, chunk.y, chunk.z, chunk.w};
    auto* elements = reinterpret_cast<std::uint16_t*>(to);
#pragma unroll
    for (int i = 0; i < 8; ++i) elements[i] = static_cast<std::uint16_t>(words[i / 2] >> (i % 2 * 16));
  }

  __device__ __forceinline__ void store_partial(int block, const float (&out)[kOut], const float (&factor)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const RowPlace at = place(row(block, r));
      if (at.token >= work.seq_q) continue;
      const int first = first_column + lane_column(lane);
      store_row(params.splits.out + partial_row(at) * params.head_dim_v + first, out, r, factor[r], first, params.head_dim_v);
    }
  }

  // ---- rows that are not finite -----------------------------------------------------------------

  /// Recomputes the warp's columns of rows that are not finite: a value that the row does not see
  /// may be NaN, and 0 * NaN is NaN.
  static __device__ __noinline__ void compute_again(const Params& params, Storage<Config>& storage, int block, RowPair rows) {
    Epilogue(params, storage).compute_rows(block, rows);
  }
  __device__ __forceinline__ void compute_rows(int block, const RowPair& rows) const {
    using Columns = ExactColumns<Config>;
    for_rows_not_finite(rows, [&](int i, int, float share) {
      const int of_row = group * Config::kGroupRows + 16 * block + i;
      const RowPlace at = place(of_row);
      if (at.token >= work.seq_q) return;
      float columns[Columns::kCount];
      Columns{params, work, first_column}(at, score_transform(params), columns);
#pragma unroll
      for (int c = 0; c < Columns::kCount; ++c) {
        const int column = first_column + c * 32 + lane;
        if (column < params.head_dim_v) put(of_row, at, column, share == 0 ? 0 : columns[c] * share);
      }
    });
  }
  __device__ void put(int of_row, RowPlace at, int column, float x) const {
    if (params.splits.count > 1) {
      params.splits.out[partial_row(at) * params.head_dim_v + column] = x;
    } else {
      store_shared_16(staged(of_row, column), pack<Element>(x, 0));
    }
  }

  const Params& params;
  Storage<Config>& storage;
  const WorkTile& work;
  const int lane, group, member, first_column;
};

}  // namespace fovea::gpu::portable::wide_attention
