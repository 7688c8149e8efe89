// SPDX-License-Identifier: Apache-2.0
/// The MMAs and the softmax of a warp, key tile by key tile. Accumulators stay in registers.
#pragma once

#include "gpu/common/score_transform.cuh"
#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/packed_mask.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/portable/paged_attention/operands.cuh"

namespace fovea::gpu::portable::paged_attention {

/// The scale of a kv head's keys joins that of the scores.
__device__ inline ScoreTransform<Warp> score_transform(const Params& params, int kv_head) {
  const float k_scale = params.k.scale == nullptr ? 1.0f : params.k.scale[kv_head * params.k.scale_stride];
  return ScoreTransform<Warp>::make(params.scale * k_scale, params.softcap, params.inv_softcap * k_scale);
}

/// The keys that a query row sees.
struct VisibleKeys {
  int begin, end;

  __device__ static VisibleKeys of_row(const Params& params, const WorkTile& work, int row) {
    const int token = params.group.quotient(work.row + row);
    return {max(token + work.low, work.begin), min(token + work.high + 1, work.end)};
  }
  __device__ float masked(float score, int key) const { return key >= begin && key < end ? score : -INFINITY; }
};
/// Where the bits of a work tile's sequence begin.
__device__ inline MaskBegin mask_begin(const Params& params, const WorkTile& work) {
  const int byte = params.bits.indptr == nullptr ? 0 : params.bits.indptr[work.sequence];
  return {work.q_begin, byte, min(max(params.kv_len[work.sequence], 0), params.seq_k)};
}
/// The bits of a row of the query tile.
__device__ inline RowBits bits_of_row(const Params& params, const MaskBegin& begin, const WorkTile& work, int row) {
  return RowBits::of(params.bits, begin, params.group.quotient(work.row + row));
}

/// Key tiles [first, last), of which every row sees every key.
struct FullTiles {
  int first, last;

  __device__ bool hold(int tile) const { return tile >= first && tile < last; }
};

/// Rows that are columns of accumulators: lanes with the same lane % 4 share them.
struct ColumnWarp : Warp {
  static __device__ float largest_of_row(float x) {
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, distance));
    return x;
  }
  static __device__ float sum_of_row(float x) {
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) x += __shfl_xor_sync(~0u, x, distance);
    return x;
  }
};

/// Up to eight query rows: keys and values are the A operands. Each warp multiplies the 16 keys of a tile that it has loaded.
template <class Config>
class NarrowMath {
 public:
  __device__ NarrowMath(const Params& params_, Storage<Config>& storage_, const ScoreTransform<Warp>& score_)
      : params(params_),
        score(score_),
        storage(storage_),
        warp(static_cast<int>(threadIdx.x) / 32),
        lane(static_cast<int>(threadIdx.x) % 32) {}

  __device__ __forceinline__ void clear() {
    softmax.begin();
#pragma unroll
    for (auto& step : out) {
#pragma unroll
      for (float& x : step) x = 0;
    }
  }

  /// Called once the queries have arrived.
  __device__ __forceinline__ void begin(const WorkTile& work_) {
    work = &work_;
    full = {work->full_first, work->full_last};
#pragma unroll
    for (int i = 0; i < kSteps / 2; ++i) {
      std::uint32_t words[4];
      ldmatrix(words, shared_address(storage.q) + static_cast<std::uint32_t>(QueryRows<Config>::offset(lane % 8, lane / 8 + 4 * i)));
#pragma unroll
      for (int j = 0; j < 4; ++j) queries[2 * i + j / 2][j % 2] = words[j];
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane_column(lane) + r;
      seen[r] = VisibleKeys::of_row(params, *work, row);
      if constexpr (Config::kQuantised) factor[r] = storage.factors[row];
    }
  }

  __device__ __forceinline__ void operator()(int tile, int stage) {
    float scores[4];
    compute_scores(scores, storage.keys(stage));
    if constexpr (Config::kQuantised) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[i] *= factor[i / 2];
    }
    score(scores);
    if (!full.hold(tile)) {
      const int key = tile * kTileKeys + warp * kWarpKeys + lane_row(lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[i] = seen[i / 2].masked(scores[i], key + i % 2 * 8);
    }
    const bool grown = softmax(scores, score.scale_log2, params.zero);
    softmax.quick = false;
    if (grown) {
#pragma unroll
      for (auto& step : out) {
#pragma unroll
        for (int i = 0; i < 4; ++i) step[i] *= softmax.rescale[i % 2];
      }
    }
    add_values(scores, storage.values(stage));
  }

  /// Stores the results over the warp's keys.
  __device__ __forceinline__ void store() {
    softmax.reduce_sum();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane_column(lane) + r;
      if (lane < 4) storage.states[warp][row] = {softmax.maximum[r], softmax.sum[r]};
      float* to = storage.results(warp, row);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int second = 0; second < 2; ++second) to[Math::column(step, second, lane_row(lane))] = out[step][2 * second + r];
      }
    }
  }

 private:
  using Element = typename Config::Element;
  using Math = Operands<Config>;
  static constexpr int kSteps = Config::kHeadDim / 16;

  /// keys x rows = K Q^T. A lane has rows 2t and 2t + 1, two keys of each.
  __device__ __forceinline__ void compute_scores(float (&scores)[4], std::uint32_t keys) const {
    float sums[2][4] = {};  // for even and odd steps: MMAs into the same accumulators wait for each other
#pragma unroll
    for (int load = 0; load < Math::kLoads; ++load) {
      typename Math::Fragments k;
      Math::keys(k, keys, warp * kWarpKeys, load, lane);
#pragma unroll
      for (int i = 0; i < Math::kSteps; ++i) {
        const int step = load * Math::kSteps + i;
        mma<Element>(sums[step % 2], k[i], queries[step][0], queries[step][1]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[i] = sums[0][i % 2 * 2 + i / 2] + sums[1][i % 2 * 2 + i / 2];
  }

  /// columns x rows += V^T P^T
  __device__ __forceinline__ void add_values(const float (&p)[4], std::uint32_t values) {
    const std::uint32_t low = movmatrix_trans(pack<Element>(p[0], p[2])), high = movmatrix_trans(pack<Element>(p[1], p[3]));
#pragma unroll
    for (int load = 0; load < Math::kLoads; ++load) {
      typename Math::Fragments v;
      Math::values(v, values, warp * kWarpKeys, load, lane);
#pragma unroll
      for (int i = 0; i < Math::kSteps; ++i) mma<Element>(out[load * Math::kSteps + i], v[i], low, high);
    }
  }

  const Params& params;
  const ScoreTransform<Warp> score;
  Storage<Config>& storage;
  const int warp, lane;
  const WorkTile* work = nullptr;
  FullTiles full{};
  VisibleKeys seen[2];
  float factor[2];
  std::uint32_t queries[kSteps][2];
  float out[kSteps][4];
  OnlineSoftmax<ColumnWarp, 4> softmax;
};

/// More query rows: they are the A operand, 16 to a warp. With kOwnKeys all warps have the same rows, and each multiplies
/// the keys that it has loaded. Else each warp has rows of its own, and multiplies all keys.
template <class Config>
class WideMath {
 public:
  __device__ WideMath(const Params& params_, Storage<Config>& storage_, const ScoreTransform<Warp>& score_)
      : params(params_),
        score(score_),
        storage(storage_),
        warp(static_cast<int>(threadIdx.x) / 32),
        first_row(Config::kOwnKeys ? 0 : warp * 16),
        first_key(Config::kOwnKeys ? warp * kKeys : 0),
        lane(static_cast<int>(threadIdx.x) % 32) {}

  __device__ __forceinline__ void clear() {
    softmax.begin();
#pragma unroll
    for (float& x : out) x = 0;
  }

  /// Called once the queries have arrived.
  __device__ __forceinline__ void begin(const WorkTile& work_) {
    work = &work_;
    full = {work->full_first, work->full_last};
    if constexpr (Config::kMasked) bits = mask_begin(params, *work);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      seen[r] = VisibleKeys::of_row(params, *work, row(r));
      if constexpr (Config::kQuantised) factor[r] = storage.factors[row(r)];
    }
  }

  __device__ __forceinline__ void operator()(int tile, int stage) {
    if (first_row >= work->rows) return;
    float scores[kScores];
    compute_scores(scores, storage.keys(stage));
    const int key = tile * kTileKeys + first_key + lane_column(lane);
    if constexpr (Config::kQuantised) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) scores[i] *= factor[row_of(i)];
    }
    score(scores);
    if (!full.hold(tile)) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) scores[i] = seen[row_of(i)].masked(scores[i], key + column_of(i));
    }
    if constexpr (Config::kMasked) hide(scores, tile * kTileKeys);
    const bool grown = softmax(scores, score.scale_log2, params.zero);
    softmax.quick = false;
    if (grown) {
#pragma unroll
      for (int i = 0; i < kOut; ++i) out[i] *= softmax.rescale[row_of(i)];
    }
    add_values(scores, storage.values(stage));
  }

  __device__ __forceinline__ void store() {
    softmax.reduce_sum();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (lane % 4 == 0) storage.states[result()][row(r)] = {softmax.maximum[r], softmax.sum[r]};
      float* to = storage.results(result(), row(r));
#pragma unroll
      for (int i = 2 * r; i < kOut; i += 4) {
        if constexpr (Config::kQuantised) {
#pragma unroll
          for (int j = 0; j < 2; ++j) to[Math::column(i / 8, i / 4 % 2, lane_column(lane) + j)] = out[i + j];
        } else {
          *reinterpret_cast<float2*>(to + Math::column(i / 8, i / 4 % 2, lane_column(lane))) = {out[i], out[i + 1]};
        }
      }
    }
  }

 private:
  using Element = typename Config::Element;
  using Math = Operands<Config>;
  static constexpr int kKeys = Config::kOwnKeys ? kWarpKeys : kWarps * kWarpKeys, kScores = kKeys / 2, kOut = Config::kHeadDim / 2;

  __device__ int result() const { return Config::kOwnKeys ? warp : 0; }
  __device__ int row(int r) const { return first_row + lane_row(lane) + 8 * r; }

  /// Hides the keys of a tile, which begins at `key`, whose bit is 0.
  __device__ __forceinline__ void hide(float (&scores)[kScores], int key) const {
    if (params.bits.tail != 0 && key + kTileKeys <= bits.seq_k - params.bits.tail) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) hide_unshown(scores, r, bits_of_row(params, bits, *work, row(r)).of_keys(key), 0, lane);
  }

  /// rows x keys = Q K^T
  __device__ __forceinline__ void compute_scores(float (&scores)[kScores], std::uint32_t keys) const {
    const MatrixPlace matrix = a_operand_place(lane);
    const std::uint32_t queries =
        shared_address(storage.q) + static_cast<std::uint32_t>(QueryRows<Config>::offset(first_row + matrix.row, matrix.chunk));
#pragma unroll
    for (float& x : scores) x = 0;
#pragma unroll
    for (int load = 0; load < Math::kLoads; ++load) {
      typename Math::Fragments q;
#pragma unroll
      for (int i = 0; i < Math::kSteps; ++i) {
        ldmatrix(q[i], QueryRows<Config>::advanced(queries, 16 * (load * Math::kSteps + i)));
      }
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        typename Math::Fragments k;
        Math::keys(k, keys, first_key + 16 * n, load, lane);
#pragma unroll
        for (int i = 0; i < Math::kSteps; ++i) {
          mma<Element>(&scores[8 * n], q[i], k[i][0], k[i][2]);
          mma<Element>(&scores[8 * n + 4], q[i], k[i][1], k[i][3]);
        }
      }
    }
  }

  /// rows x columns += P V
  __device__ __forceinline__ void add_values(const float (&scores)[kScores], std::uint32_t values) {
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      std::uint32_t p[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) p[i] = pack<Element>(scores[8 * n + 2 * i], scores[8 * n + 2 * i + 1]);
#pragma unroll
      for (int load = 0; load < Math::kLoads; ++load) {
        typename Math::Fragments v;
        Math::values(v, values, first_key + 16 * n, load, lane);
#pragma unroll
        for (int i = 0; i < Math::kSteps; ++i) {
          float* to = &out[8 * (load * Math::kSteps + i)];
          mma<Element>(to, p, v[i][0], v[i][2]);
          mma<Element>(to + 4, p, v[i][1], v[i][3]);
        }
      }
    }
  }

  const Params& params;
  const ScoreTransform<Warp> score;
  Storage<Config>& storage;
  const int warp, first_row, first_key, lane;
  const WorkTile* work = nullptr;
  FullTiles full{};
  VisibleKeys seen[2];
  MaskBegin bits{};  // of a call with a packed mask
  float factor[2];
  float out[kOut];
  OnlineSoftmax<Warp, kScores> softmax;
};

template <class Config>
using Math = std::conditional_t<Config::kNarrow, NarrowMath<Config>, WideMath<Config>>;

}  // namespace fovea::gpu::portable::paged_attention
