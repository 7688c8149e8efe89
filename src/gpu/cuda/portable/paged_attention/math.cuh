// SPDX-License-Identifier: Apache-2.0
/// The MMAs and the softmax of a warp, key tile by key tile. Accumulators stay in registers.
#pragma once

#include "gpu/cuda/portable/paged_attention/narrow_math.cuh"

namespace fovea::gpu::portable::paged_attention {

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
    if constexpr (Config::kWeighted) weights.begin();
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
      factor[r] = 1;
      if constexpr (Config::kQuantised) factor[r] = storage.factors[row(r)];
      if constexpr (Config::Format::kBlockScales || Config::Format::kBlockPowers) factor[r] *= code_unit<typename Config::Cache>(0);
      if constexpr (Config::Format::kZeroPoints) sum[r] = storage.factors[Config::kRowTile + row(r)];
    }
  }

  __device__ __forceinline__ void operator()(int tile, int stage) {
    if (first_row >= work->rows) return;
    if constexpr (Config::Format::kBlockPowers) asm volatile("" : "+r"(lane));  // as in NarrowMath
    float scores[kScores];
    const std::uint32_t k_scales = storage.scales(stage), v_scales = k_scales + Config::kStageKeys * Config::kKeyScales;
    compute_scores(scores, storage.keys(stage), k_scales);
    const int of_tile = first_key + lane_column(lane), key = tile * kTileKeys + of_tile;
    if constexpr (Config::Format::kTokenScales) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        const auto its = TokenScale<Config>::of_key(k_scales, of_tile + column_of(i));
        scores[i] = its.score(scores[i], factor[row_of(i)], sum[row_of(i)]);
      }
    } else if constexpr (Config::kQuantised) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) scores[i] *= factor[row_of(i)];
    }
    score(scores);
    if (!full.hold(tile) || !full.hold(tile + Config::kKeyTiles - 1)) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) scores[i] = seen[row_of(i)].masked(scores[i], key + column_of(i));
    }
    if constexpr (Config::kMasked) hide(scores, tile * kTileKeys);
    bool grown = softmax(scores, score.scale_log2, params.zero);
    softmax.quick = false;
    if constexpr (Config::kWeighted) {
      const auto scale_of = [&](int i) { return TokenScale<Config>::of_value(v_scales, of_tile + column_of(i)).factor; };
      grown = weights(scores, scale_of, grown, softmax.rescale);
    }
    if (grown) {
#pragma unroll
      for (int i = 0; i < kOut; ++i) out[i] *= softmax.rescale[row_of(i)];
    }
    add_values(scores, storage.values(stage), v_scales);
  }

  __device__ __forceinline__ void store() {
    softmax.reduce_sum();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (lane % 4 == 0) storage.states[result()][row(r)] = {softmax.maximum[r], softmax.sum[r]};
      float* to = storage.results(result(), row(r));
      float zeros = 0;
      if constexpr (Config::Format::kZeroPoints) zeros = Warp::sum_of_row(weights.zeros[r]);
#pragma unroll
      for (int i = 2 * r; i < kOut; i += 4) {
        if constexpr (Config::kQuantised || Config::kDecodes) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            float& at = to[Math::column(i / 8, i / 4 % 2, lane_column(lane) + j)];
            at = out[i + j];
            if constexpr (Config::kScaledKeys) at *= code_unit<typename Config::Cache>(i / 4 % 2);
            if constexpr (Config::kWeighted) at = (at - zeros) * weights.power(r);
          }
        } else {
          *reinterpret_cast<float2*>(to + Math::column(i / 8, i / 4 % 2, lane_column(lane))) = {out[i], out[i + 1]};
        }
      }
    }
  }

 private:
  using Element = typename Config::Element;
  using Math = Operands<Config>;
  static constexpr int kKeys = Config::kOwnKeys ? Config::kWarpKeys : kTileKeys, kScores = kKeys / 2, kOut = Config::kHeadDim / 2;

  __device__ int result() const { return Config::kOwnKeys ? warp : 0; }
  __device__ int row(int r) const { return first_row + lane_row(lane) + 8 * r; }

  /// Hides the keys of a tile, which begins at `key`, whose bit is 0.
  __device__ __forceinline__ void hide(float (&scores)[kScores], int key) const {
    if (params.bits.tail != 0 && key + kTileKeys <= bits.seq_k - params.bits.tail) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) hide_unshown(scores, r, bits_of_row(params, bits, *work, row(r)).of_keys(key), 0, lane);
  }

  /// rows x keys = Q K^T
  __device__ __forceinline__ void compute_scores(float (&scores)[kScores], std::uint32_t keys, std::uint32_t scales) const {
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
        Math::keys(k, keys, first_key + 16 * n, load, lane, scales);
        if constexpr (Config::Format::kBlockPowers) {
          BlockPowers<Config>::add_products_of_queries(&scores[8 * n], q, k, scales, first_key + 16 * n + lane_column(lane), load);
        } else {
#pragma unroll
          for (int i = 0; i < Math::kSteps; ++i) {
            mma<Element>(&scores[8 * n], q[i], k[i][0], k[i][2]);
            mma<Element>(&scores[8 * n + 4], q[i], k[i][1], k[i][3]);
          }
        }
      }
    }
  }

  /// rows x columns += P V
  __device__ __forceinline__ void add_values(const float (&scores)[kScores], std::uint32_t values, std::uint32_t scales) {
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      std::uint32_t p[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) p[i] = pack<Element>(scores[8 * n + 2 * i], scores[8 * n + 2 * i + 1]);
      if constexpr (Config::Format::kZeroPoints) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = first_key + lane_column(lane) + column_of(8 * n + 2 * i);
          const float2 of = unpack<Element>(p[i]);
          float& sum_of_zeros = weights.zeros[row_of(2 * i)];
          sum_of_zeros = fmaf(of.x, TokenScale<Config>::of_value(scales, key).zero, sum_of_zeros);
          sum_of_zeros = fmaf(of.y, TokenScale<Config>::of_value(scales, key + 1).zero, sum_of_zeros);
        }
      }
#pragma unroll
      for (int load = 0; load < Math::kLoads; ++load) {
        typename Math::Fragments v;
        Math::values(v, values, first_key + 16 * n, load, lane, scales);
        float* to = &out[8 * load * Math::kSteps];
        if constexpr (Config::Format::kBlockPowers) {
          BlockPowers<Config>::add_values(to, v, p, scales, first_key + 16 * n + lane_column(lane), load);
        } else {
#pragma unroll
          for (int i = 0; i < Math::kSteps; ++i) {
            mma<Element>(to + 8 * i, p, v[i][0], v[i][2]);
            mma<Element>(to + 8 * i + 4, p, v[i][1], v[i][3]);
          }
        }
      }
    }
  }

  const Params& params;
  const ScoreTransform<Warp> score;
  Storage<Config>& storage;
  const int warp, first_row, first_key;
  int lane;
  const WorkTile* work = nullptr;
  FullTiles full{};
  VisibleKeys seen[2];
  MaskBegin bits{};  // of a call with a packed mask
  float factor[2], sum[2];
  float out[kOut];
  OnlineSoftmax<Warp, kScores> softmax;
  ValueWeights<Warp, kScores, Config::Format::kBlockPowers> weights;
};

template <class Config>
using Math = std::conditional_t<Config::kNarrow, NarrowMath<Config>, WideMath<Config>>;

}  // namespace fovea::gpu::portable::paged_attention
