// SPDX-License-Identifier: Apache-2.0
/// The epilogue of a warp: lse, normalisation, and stores of the results.
#pragma once

#include "gpu/common/score_transform.cuh"
#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/exact_row.cuh"
#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/common/packed_mask.cuh"
#include "gpu/cuda/common/score_bias.cuh"
#include "gpu/cuda/portable/attention/biased/exact_row.cuh"
#include "gpu/cuda/portable/attention/load.cuh"

namespace fovea::gpu::portable::attention {

__device__ __forceinline__ ScoreTransform<Warp> score_transform(const Params& params) {
  return {params.scale, params.softcap, params.inv_softcap, params.transform ? kLog2e : params.scale_log2, params.transform};
}

/// Where the bits of a work tile's sequence begin.
__device__ inline MaskBegin mask_begin(const Params& params, const WorkTile& work) {
  const bool ragged = params.cu_seqlens_q != nullptr;
  return {.first_row = ragged ? std::int64_t{work.q_begin} : std::int64_t{work.batch} * params.seq_q,
          .byte = params.bits.indptr == nullptr ? 0 : params.bits.indptr[work.batch],
          .seq_k = work.seq_k};
}

__device__ __forceinline__ BiasPlace bias_place(const WorkTile& work, RowPlace at) {
  return {work.batch, at.head, at.token, work.seq_q, work.seq_k};
}
__device__ __forceinline__ DropoutRow dropout_row(const Params& params, const WorkTile& work, RowPlace at) {
  const auto number = [](int x) { return static_cast<std::uint32_t>(x); };
  return {number(at.token), number(work.batch) * number(params.heads) + number(at.head)};
}

template <class Config>
class Epilogue {
 public:
  using Softmax = OnlineSoftmax<Warp, Config::kKeyTile / 2>;
  using Element = typename Config::Element;
  static constexpr int kBlocks = Config::kBlocks, kOut = Config::kHeadDimV / 2;
  static_assert(kBlocks <= 2);

  __device__ Epilogue(const Params& params_, Storage<Config>& storage_)
      : params(params_),
        storage(storage_),
        work(storage_.work),
        lane(static_cast<int>(threadIdx.x % 32)),
        warp_row(static_cast<int>(threadIdx.x / 32) * Config::kWarpRows) {}

  /// `out` is relative to 2^(maximum * scale_log2).
  __device__ __forceinline__ void operator()(Softmax (&softmax)[kBlocks], const float (&out)[kBlocks][kOut]) const {
    const float scale_log2 = score_transform(params).scale_log2;
    // Masked values, or all values with an infinite sink, have weight 0, and 0 * NaN is NaN.
    const bool hides = Config::kLists || Config::kMasked || Config::kBiased || work.full_first > work.first || work.full_last < work.last;
    const bool leaks = hides || params.sink != nullptr;
    // With two blocks a lane stores the lse of one row. With one, this and what else is for two put accumulators into local memory.
    float own_sum = 0, own_base = 0;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      softmax[b].reduce_sum();
      float factor[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float base = softmax[b].maximum[r] * scale_log2;
        factor[r] = normaliser(b, r, softmax[b].sum[r], base);
        if constexpr (kBlocks == 1) {
          if (lane % 4 == 0) store_lse(b, r, lse_of(softmax[b].sum[r], base) * kLn2);
        } else if (lane % 4 == 2 * b + r) {
          own_sum = softmax[b].sum[r];
          own_base = base;
        }
      }
      const float keep_factor = Config::kBiased ? params.bias.keep_factor : 1,
                  of_kept[2] = {factor[0] * keep_factor, factor[1] * keep_factor};
      if (params.splits.count > 1) {
        store_partial(b, out[b], of_kept);
      } else {
        stage(b, out[b], of_kept);
      }
      if (kBlocks > 1 && !leaks) continue;
      const RowPair rows{{lanes_not_finite(out[b], 0), lanes_not_finite(out[b], 1)},
                         {factor[0] * softmax[b].sum[0], factor[1] * softmax[b].sum[1]}};
      if (leaks && (rows.lanes[0] | rows.lanes[1]) != 0) compute_again(params, storage, b, rows);
    }
    if constexpr (kBlocks > 1) store_lse(lane % 4 / 2, lane % 2, lse_of(own_sum, own_base) * kLn2);
    __syncwarp();  // all of the warp's results are in its queries' place
    if (params.splits.count > 1) return;
    if (kBlocks > 1 && params.packed_shift == 0 && params.out.aligned && params.head_dim_v == Config::kHeadDimV) {
      store_whole();
    } else {
      store();
    }
  }

 private:
  using StagedRows = SwizzledRows<Config::kHeadDimQk>;

  __device__ RowPlace place(int row) const { return work.place(row, params.packed_shift); }
  __device__ int row(int block, int r) const { return warp_row + 16 * block + lane_row(lane) + 8 * r; }

  /// Factor of a row's accumulators, which are relative to 2^base. With splits the combining kernel adds the sink's share.
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
    if (at.token >= work.seq_q) return;
    if (params.splits.count > 1) {
      params.splits.lse[partial_row(at)] = value;
    } else if (params.lse != nullptr) {
      params.lse[work.offset(params.lse_strides, at)] = value;
    }
  }
  __device__ std::int64_t partial_row(RowPlace at) const {
    return params.splits.cell(work.split, std::int64_t{work.batch} * params.seq_q + at.token, at.head);
  }

  /// Address of a staged result: results overwrite the queries.
  __device__ std::uint32_t staged(int of_row, int column) const {
    return shared_address(storage.q) + static_cast<std::uint32_t>(StagedRows::offset(of_row, column / 8) + column % 8 * 2);
  }
  __device__ __forceinline__ void stage(int block, const float (&out)[kOut], const float (&factor)[2]) const {
#pragma unroll
    for (int i = 0; i < kOut; i += 2) {
      const int r = row_of(i);
      store_shared_32(staged(row(block, r), column_of(i) + lane_column(lane)), pack<Element>(out[i] * factor[r], out[i + 1] * factor[r]));
    }
  }

  /// The warp's rows of one head, with all columns, by chunks of 16 bytes.
  __device__ __forceinline__ void store_whole() const {
    constexpr int kLanes = StagedRows::kSpanChunks, kRowsAtOnce = 32 / kLanes;
    constexpr int kSpans = Config::kHeadDimV * 2 / StagedRows::kSpanBytes;
    const int of_row = warp_row + lane / kLanes, column = lane % kLanes * 8, valid = work.seq_q - work.token - of_row;
    const std::int64_t step = kRowsAtOnce * params.out.strides.row;
    Element* to = row_of_head<Element>(params.out, work.batch, work.q_begin, work.head) +
                  std::int64_t{work.token + of_row} * params.out.strides.row + column;
#pragma unroll
    for (int i = 0; i < Config::kWarpRows; i += kRowsAtOnce, to += step) {
#pragma unroll
      for (int span = 0; span < kSpans; ++span) {
        const int at = span * StagedRows::kSpanBytes / 2;
        const uint4 chunk = load_shared_128(staged(of_row + i, column + at));
        if (i < valid) *reinterpret_cast<uint4*>(to + at) = chunk;
      }
    }
  }
  /// The warp's rows, by chunks of 16 bytes where all rows are aligned to them.
  __device__ __forceinline__ void store() const {
    constexpr int kLanes = StagedRows::kSpanChunks, kRowsAtOnce = 32 / kLanes;
    Element* first = row_of_head<Element>(params.out, work.batch, work.q_begin, 0);
#pragma unroll 4
    for (int i = 0; i < Config::kWarpRows; i += kRowsAtOnce) {
      const int of_row = warp_row + i + lane / kLanes;
      const RowPlace at = place(of_row);
      if (at.token >= work.seq_q) continue;
      Element* to = first + at.token * params.out.strides.row + at.head * params.out.strides.head;
      for (int column = lane % kLanes * 8; column < params.head_dim_v; column += 8 * kLanes) {
        const uint4 chunk = load_shared_128(staged(of_row, column));
        if (params.out.aligned) {
          *reinterpret_cast<uint4*>(to + column) = chunk;
        } else {
          store_elements(to + column, chunk);
        }
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
      const int first = lane_column(lane);
      store_row(params.splits.out + partial_row(at) * params.head_dim_v + first, out, r, factor[r], first, params.head_dim_v);
    }
  }

  // ---- rows that are not finite ---------------------------------------------------------------------------------------------------------

  /// Recomputes rows of a block that are not finite: a value that the row does not see may be NaN, and 0 * NaN is NaN.
  static __device__ __noinline__ void compute_again(const Params& params, Storage<Config>& storage, int block, RowPair rows) {
    Epilogue(params, storage).compute_rows(block, rows);
  }
  __device__ __forceinline__ void compute_rows(int block, const RowPair& rows) const {
    for_rows_not_finite(rows, [&](int i, int, float share) {
      const int of_row = warp_row + 16 * block + i;
      const RowPlace at = place(of_row);
      if (at.token >= work.seq_q) return;
      float columns[ExactRow<Element>::kColumns];
      exact(at, columns);
#pragma unroll
      for (int c = 0; c < ExactRow<Element>::kColumns; ++c) {
        const int column = c * 32 + lane;
        if (column < params.head_dim_v) put(of_row, at, column, share == 0 ? 0 : columns[c] * share);
      }
    });
  }
  __device__ void exact(RowPlace at, float (&columns)[ExactRow<Element>::kColumns]) const {
    const ExactRow<Element> one{row_of_head<Element>(params.q, work.batch, work.q_begin + at.token, at.head), params.head_dim_qk,
                                params.head_dim_v};
    const WorkTile::Keys seen = work.own_keys_of(at.token, Config::kKeyTile);
    const auto row_of = [&](int key) {
      return KeyRow<Element>{static_cast<const Element*>(work.keys) + key * params.k.strides.row,
                             static_cast<const Element*>(work.values) + key * params.v.strides.row};
    };
    const ScoreTransform<Warp> transform = score_transform(params);
    const auto transformed = [&](float product, int) { return transform(product); };
    if constexpr (Config::kLists) {
      const int count = VisibleKeys<Config::kKeyTile>(params.lists, work, at.token).count();
      VisibleKeys<Config::kKeyTile> keys(params.lists, work, at.token);
      one(
          0, count, transform.scale_log2, [&](int) { return row_of(keys.next()); }, transformed, columns);
    } else if constexpr (Config::kMasked) {
      const RowBits bits = RowBits::of(params.bits, mask_begin(params, work), at.token);
      one(seen.begin, seen.end, transform.scale_log2, row_of, transformed, columns, [&](int key) { return bits.shows(key); });
    } else if constexpr (Config::kBiased) {
      const auto biased = [&](float product, int key) {
        return transform(product) + added_score<Element>(params, params.bias, bias_place(work, at), key);
      };
      const auto share_of = [&](int key) { return kept_share(params.bias, dropout_row(params, work, at), key); };
      ExactBiasedRow<Element, decltype(row_of), decltype(biased), decltype(share_of)>{
          one.q, params.head_dim_qk, params.head_dim_v, row_of, biased, share_of}(seen.begin, seen.end, transform.scale_log2, columns);
    } else {
      one(seen.begin, seen.end, transform.scale_log2, row_of, transformed, columns);
    }
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
  const int lane, warp_row;  // of the query tile, the warp's first row
};

}  // namespace fovea::gpu::portable::attention
