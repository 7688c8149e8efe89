// SPDX-License-Identifier: Apache-2.0
/// The epilogue where the CTAs of a cluster share the keys of a query tile. A CTA stores the rows of some
/// of its warps and gets their partial results from the other CTAs.
#pragma once

#include "gpu/cuda/sm90/attention/one_wave/epilogue.cuh"
#include "gpu/cuda/sm90/cluster.cuh"

namespace fovea::gpu::sm90::one_wave {

template <class Config>
class MergeCluster {
 public:
  using Softmax = typename Math<Config>::Softmax;
  static constexpr int kOut = Math<Config>::kOut;

  /// `work`: of the warpgroup's rows.
  __device__ MergeCluster(const Params& params_, Storage<Config>& storage_, const WorkTile& work_)
      : params(params_), storage(storage_), work(work_), log2_scale(score_scale<Config>(params_).log2) {}

  /// Bytes of partial results that a CTA gets from the other `ctas` - 1.
  static __device__ int partial_bytes(int ctas) {
    return (ctas - 1) * (Config::kWarps / ctas) * Config::kPieces * static_cast<int>(sizeof(PartialPiece));
  }

  /// Sends a partial result to the CTA that stores it, or merges those of the other CTAs into this one.
  /// Returns whether this CTA stores the rows of this warp.
  __device__ __forceinline__ bool merge(Softmax& softmax, float (&out)[kOut], int rank) const {
    const int shift = params.cluster_shift, warps = Config::kWarps >> shift;
    const int warp = uniform(thread_index() / 32), owner = warp / warps, slot = warp % warps;
    if (owner != rank) {
      send(softmax, out, owner, (rank - (rank > owner ? 1 : 0)) * warps + slot);
      return false;
    }
    barrier_wait(shared_address(&storage.cluster.full), 0);
    const int others = (1 << shift) - 1;
    float to[2] = {softmax.maximum[0], softmax.maximum[1]};
#pragma unroll 1
    for (int i = 0; i < others; ++i) {
      std::uint32_t stats[4];
      piece(i * warps + slot, 0, stats);
#pragma unroll
      for (int r = 0; r < 2; ++r) to[r] = fmaxf(to[r], __uint_as_float(stats[r]));
    }
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      factor[r] = rescale_factor<Warp>(softmax.maximum[r], to[r], log2_scale);
      softmax.maximum[r] = to[r];
      softmax.sum[r] *= factor[r];
    }
    scale_rows(out, factor);
#pragma unroll 1
    for (int i = 0; i < others; ++i) add(softmax, out, i * warps + slot);
    return true;
  }

  /// Stores the results of a warp. Its rows of q are read no more.
  __device__ __forceinline__ void store(const Softmax& softmax, const float (&out)[kOut]) const {
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) factor[r] = normaliser(params, place(tile_row(r)), softmax.sum[r], softmax.base(r, log2_scale));
    stage_rows<Element, Config::kHeadDimV>(out, factor, {warpgroup_rows(), Config::kQuerySliceBytes});
    if (may_be_nan(params, work)) {
      const RowPair rows{{lanes_not_finite(out, 0), lanes_not_finite(out, 1)}, {factor[0] * softmax.sum[0], factor[1] * softmax.sum[1]}};
      if ((rows.lanes[0] | rows.lanes[1]) != 0) recompute_rows(rows);
    }
    const bool second = lane_index() % 2 == 1;  // row whose lse this lane stores
    const float base = second ? softmax.base(1, log2_scale) : softmax.base(0, log2_scale);
    const float value = base + Warp::log2(second ? softmax.sum[1] : softmax.sum[0]);
    if (lane_index() % 4 <= 1) store_lse(params, work, place(tile_row(second)), value);
    __syncwarp();
    store_staged_rows();
  }

 private:
  using Element = typename Config::Element;
  static constexpr int kChunks = Config::kHeadDimV / 8;  // of 16 bytes, in a row of results

  __device__ __forceinline__ void send(const Softmax& softmax, const float (&out)[kOut], int owner, int at) const {
    const std::uint32_t to = remote_address(shared_address(storage.cluster.pieces[at]) + lane_index() * 16, owner);
    const std::uint32_t full = remote_address(shared_address(&storage.cluster.full), owner);
    const float stats[4] = {softmax.maximum[0], softmax.maximum[1], softmax.sum[0], softmax.sum[1]};
    send_piece(to, stats, full);
#pragma unroll
    for (int i = 0; i < kOut / 4; ++i) {
      const float x[4] = {out[4 * i], out[4 * i + 1], out[4 * i + 2], out[4 * i + 3]};
      send_piece(to + (i + 1) * static_cast<int>(sizeof(PartialPiece)), x, full);
    }
  }
  static __device__ __forceinline__ void send_piece(std::uint32_t to, const float (&x)[4], std::uint32_t full) {
    const std::uint32_t words[4] = {__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3])};
    store_async(to, words, full);
  }

  __device__ __forceinline__ void piece(int at, int i, std::uint32_t (&words)[4]) const {
    load_shared(shared_address(storage.cluster.pieces[at][i].words[lane_index()]), words);
  }
  __device__ __forceinline__ void add(Softmax& softmax, float (&out)[kOut], int at) const {
    std::uint32_t stats[4];
    piece(at, 0, stats);
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      factor[r] = rescale_factor<Warp>(__uint_as_float(stats[r]), softmax.maximum[r], log2_scale);
      softmax.sum[r] = fmaf(__uint_as_float(stats[2 + r]), factor[r], softmax.sum[r]);
    }
#pragma unroll
    for (int i = 0; i < kOut / 4; ++i) {
      std::uint32_t words[4];
      piece(at, i + 1, words);
#pragma unroll
      for (int j = 0; j < 4; ++j) out[4 * i + j] = fmaf(__uint_as_float(words[j]), factor[j / 2], out[4 * i + j]);
    }
  }

  __device__ RowPlace place(int row) const { return work.place(row % 64, params.packed_shift); }

  __device__ std::uint32_t warpgroup_rows() const { return shared_address(storage.q) + uniform(thread_index() / 128) * 64 * kSliceBytes; }
  /// Address of 16 bytes of results. `row`: of the query tile.
  static __device__ std::uint32_t chunk_at(const Storage<Config>& storage, int row, int chunk) {
    return shared_address(storage.q) + chunk / 8 * Config::kQuerySliceBytes + row * kSliceBytes + ((chunk % 8) ^ (row % 8)) * 16;
  }
  __device__ Element* result_at(RowPlace at, int column) const {
    return static_cast<Element*>(const_cast<void*>(params.out.data)) + work.offset(params.out.strides, at) + column;
  }

  __device__ __forceinline__ void store_staged_rows() const {
#pragma unroll
    for (int i = 0; i < kChunks / 2; ++i) {
      const int index = i * 32 + lane_index(), row = thread_index() / 32 * 16 + index / kChunks, chunk = index % kChunks;
      const RowPlace at = place(row);
      const uint4 x = load_shared_128(chunk_at(storage, row, chunk));
      if (at.token < work.seq_q && chunk * 8 < params.head_dim_v) *reinterpret_cast<uint4*>(result_at(at, chunk * 8)) = x;
    }
  }

  __device__ __forceinline__ void recompute_rows(const RowPair& rows) const {
    for_rows_not_finite(rows, [&](int i, int, float share) {
      const int row = thread_index() / 32 * 16 + i;
      const RowPlace at = place(row);
      if (at.token >= work.seq_q) return;
      const std::uint32_t to = chunk_at(storage, row, 0);
      recompute_row<Config>(params, work, at, share, [to, row](int column, float x) {
        const std::uint32_t chunk = to + column / 64 * Config::kQuerySliceBytes + (((column / 8 % 8) ^ (row % 8)) - row % 8) * 16;
        store_shared_16(chunk + column % 8 * 2, pack<Element>(x, 0));
      });
    });
  }

  const Params& params;
  Storage<Config>& storage;
  const WorkTile& work;
  const float log2_scale;
};

}  // namespace fovea::gpu::sm90::one_wave
