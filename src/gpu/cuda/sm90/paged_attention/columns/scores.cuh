// SPDX-License-Identifier: Apache-2.0
/// The kernel of scores: Q K^T of each key tile by a CTA, transformed and masked.
#pragma once

#include "gpu/cuda/common/copy_async.cuh"
#include "gpu/cuda/common/global_memory.cuh"
#include "gpu/cuda/common/mma.cuh"
#include "gpu/cuda/common/target.cuh"
#include "gpu/cuda/sm90/dense/exact_row.cuh"
#include "gpu/cuda/sm90/paged_attention/columns/cell.cuh"

namespace fovea::gpu::sm90::paged_attention::columns {

template <int kHeadDim_, int kKeyTile_>
struct ScoreShared {
  static constexpr int kChunks = kHeadDim_ / 8, kRowBytes = 16 * (kChunks + 1);  // an odd number of chunks: no bank conflicts
  alignas(16) std::byte q[kRows * kRowBytes];
  alignas(16) std::byte k[kKeyTile_ * kRowBytes];
  std::int64_t offsets[kKeyTile_];
};

/// Offset of a key that is zeros, as no row sees it, and of one in no block.
inline constexpr std::int64_t kUnseen = -1, kNoBlock = -2;

template <class Element, int kHeadDim, int kKeyTile>
class Scores {
 public:
  using Shared = ScoreShared<kHeadDim, kKeyTile>;

  __device__ Scores(const Params& params_, Shared& shared_, const Cell& cell_)
      : params(params_), shared(shared_), cell(cell_), thread(static_cast<int>(threadIdx.x)) {}

  __device__ void operator()() {
    load_queries();
    for (int tile = first_tile(); tile >= cell.work.first; tile -= step()) {
      load_keys(tile * kKeyTile);
      float* to = cell.scores_of(tile, kKeyTile);
      for (int sixteen = thread / 32; sixteen < kKeyTile / 16; sixteen += kScoreThreads / 32) compute(tile, sixteen, to);
      __syncthreads();
      if (thread == 0) flag_set(cell.ready(tile), 1);
    }
  }

  /// Before the next kernel starts: scores are not ready, and no CTA has stored columns.
  __device__ void clear() const {
    if (thread != 0 || cell.rows == 0) return;
    for (int tile = first_tile(); tile >= cell.work.first; tile -= step()) *cell.ready(tile) = 0;
    if (blockIdx.x == 0) cell.state()[0] = cell.state()[1] = 0;
    __threadfence();
  }

 private:
  /// Key tiles run from the last to the first, as the next kernel reads them.
  __device__ int first_tile() const { return cell.work.last - 1 - static_cast<int>(blockIdx.x); }
  static __device__ int step() { return static_cast<int>(gridDim.x); }

  __device__ void load_queries() const {
    const auto* q = static_cast<const Element*>(params.q.data);
    for (int i = thread; i < kRows * Shared::kChunks; i += kScoreThreads) {
      const int row = i / Shared::kChunks, chunk = i % Shared::kChunks;
      const RowPlace at = cell.place(row);
      const bool present = row < cell.rows && chunk * 8 < params.head_dim_qk;
      const auto* from = q + (present ? cell.work.offset(params.q.strides, at) + chunk * 8 : 0);
      copy_async(shared_address(shared.q + row * Shared::kRowBytes + chunk * 16), from, present);
    }
  }

  __device__ void load_keys(int key) const {
    for (int i = thread; i < kKeyTile; i += kScoreThreads) {
      const int block = cell.sees(key + i) ? cell.block_of(key + i) : 0;
      shared.offsets[i] = !cell.sees(key + i)  ? kUnseen
                          : !params.has(block) ? kNoBlock
                                               : cell.offset_in_head(params.k.strides, key + i, block);
    }
    __syncthreads();
    const auto* k = static_cast<const Element*>(params.k.data) + cell.kv_head * params.k.strides.head;
#pragma unroll 8
    for (int i = thread; i < kKeyTile * Shared::kChunks; i += kScoreThreads) {
      const int row = i / Shared::kChunks, chunk = i % Shared::kChunks;
      const std::int64_t offset = shared.offsets[row];
      const std::uint32_t to = shared_address(shared.k + row * Shared::kRowBytes + chunk * 16);
      const bool present = offset >= 0 && chunk * 8 < params.head_dim_qk;
      copy_async(to, k + (present ? offset + chunk * 8 : 0), present);
    }
    copy_async_commit();
    copy_async_wait<0>();
    // The thread's own copies are complete.
    for (int i = thread; i < kKeyTile * Shared::kChunks; i += kScoreThreads) {
      constexpr std::uint32_t kNan = 0x7fff7fff;
      const int row = i / Shared::kChunks;
      if (shared.offsets[row] == kNoBlock)
        store_shared_128(shared_address(shared.k + row * Shared::kRowBytes + i % Shared::kChunks * 16), {kNan, kNan, kNan, kNan});
    }
    __syncthreads();
  }

  /// Computes the scores of 16 keys by a warp.
  __device__ void compute(int tile, int sixteen, float* to) const {
    const int lane = thread % 32;
    const MatrixPlace of_q = a_operand_place(lane), of_k = b_operand_place(lane);
    const std::uint32_t q = shared_address(shared.q + of_q.row * Shared::kRowBytes + of_q.chunk * 16);
    const std::uint32_t k = shared_address(shared.k + (16 * sixteen + of_k.row) * Shared::kRowBytes + of_k.chunk * 16);
    float scores[8] = {};
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      std::uint32_t a[4], b[4];
      ldmatrix(a, q + 32 * step);
      ldmatrix(b, k + 32 * step);
      mma<Element>(scores, a, b[0], b[1]);
      mma<Element>(scores + 4, a, b[2], b[3]);
    }
    if (params.transform) {
#pragma unroll
      for (float& x : scores) x = dense::transformed(params, x);
    }
    const int column = tile * kKeyTile + 16 * sixteen + lane_column(lane);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane_row(lane) + 8 * r;
      if (row >= cell.rows) continue;
      const WorkTile::Keys seen = cell.work.keys_of(cell.place(row).token);
      mask_row(scores, r, seen.begin - column, seen.end - column);
      auto* at = reinterpret_cast<float4*>(to) + (sixteen * params.score_rows + row) * 4 + lane % 4;
      *at = {scores[2 * r], scores[2 * r + 1], scores[4 + 2 * r], scores[5 + 2 * r]};
    }
  }

  const Params& params;
  Shared& shared;
  const Cell& cell;
  const int thread;
};

/// A CTA takes every gridDim.x-th key tile of a cell.
template <class Element, int kHeadDim, int kKeyTile>
__global__ void __launch_bounds__(kScoreThreads) compute_scores(const __grid_constant__ Params params) {
  extern __shared__ __align__(16) std::byte shared[];
  grid_dependency_wait();
  const Cell cell(params, static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y), kKeyTile);
  auto& storage = *reinterpret_cast<ScoreShared<kHeadDim, kKeyTile>*>(shared);
  Scores<Element, kHeadDim, kKeyTile> scores(params, storage, cell);
  scores.clear();
  if (threadIdx.x == 0) launch_dependents();
  if (cell.rows > 0) scores();
}

}  // namespace fovea::gpu::sm90::paged_attention::columns
