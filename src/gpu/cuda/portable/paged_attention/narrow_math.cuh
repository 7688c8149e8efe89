// SPDX-License-Identifier: Apache-2.0
/// The MMAs and the softmax of a warp with up to eight query rows. Accumulators stay in registers.
#pragma once

#include "gpu/cuda/portable/paged_attention/block_powers.cuh"
#include "gpu/cuda/portable/paged_attention/scores.cuh"
#include "gpu/cuda/portable/paged_attention/value_weights.cuh"

namespace fovea::gpu::portable::paged_attention {

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
    if constexpr (Config::kWeighted) weights.begin();
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
    for (int i = 0; i < (kKeepsQueries ? kSteps / 2 : 0); ++i) load_queries(&queries[2 * i], i);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane_column(lane) + r;
      seen[r] = VisibleKeys::of_row(params, *work, row);
      factor[r] = 1;
      if constexpr (Config::kQuantised) factor[r] = storage.factors[row];
      if constexpr (Config::Format::kBlockScales || Config::Format::kBlockPowers) factor[r] *= code_unit<typename Config::Cache>(0);
      if constexpr (Config::Format::kZeroPoints) sum[r] = storage.factors[Config::kRowTile + row];
    }
  }

  __device__ __forceinline__ void operator()(int tile, int stage) {
    if constexpr (Config::kCoded) asm volatile("" : "+r"(lane));  // else addresses stay in registers, and others spill
    float scores[kScores];
    const std::uint32_t k_scales = storage.scales(stage), v_scales = k_scales + Config::kStageKeys * Config::kKeyScales;
    const int of_stage = warp * Config::kWarpKeys + lane_row(lane);
    compute_scores(scores, storage.keys(stage), k_scales);
    if constexpr (Config::Format::kBlockPowers) BlockPowers<Config>::prepare_values(storage, stage);
    if constexpr (Config::Format::kTokenScales) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        const auto key = TokenScale<Config>::of_key(k_scales, of_stage + key_of(i));
        scores[i] = key.score(scores[i], factor[row_of(i)], sum[row_of(i)]);
      }
    } else if constexpr (Config::kQuantised) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) scores[i] *= factor[row_of(i)];
    }
    score(scores);
    if (!full.hold(tile) || !full.hold(tile + Config::kKeyTiles - 1)) {
      const int key = tile * kTileKeys + of_stage;
#pragma unroll
      for (int i = 0; i < kScores; ++i) scores[i] = seen[row_of(i)].masked(scores[i], key + key_of(i));
    }
    bool grown = softmax(scores, score.scale_log2, params.zero);
    softmax.quick = false;
    float zero[kScores / 2];
    if constexpr (Config::Format::kBlockPowers) __syncwarp();
    if constexpr (Config::kWeighted) {
      float factors[kScores / 2];
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) {
        const auto value = TokenScale<Config>::of_value(v_scales, of_stage + 8 * i);
        factors[i] = value.factor;
        zero[i] = value.zero;
      }
      grown = weights(
          scores, [&](int i) { return factors[key_of(i) / 8]; }, grown, softmax.rescale);
    }
    if (grown) {
#pragma unroll
      for (auto& step : out) {
#pragma unroll
        for (int i = 0; i < 4; ++i) step[i] *= softmax.rescale[i % 2];
      }
    }
    add_values(scores, zero, storage.values(stage), v_scales);
  }

  /// Stores the results over the warp's keys.
  __device__ __forceinline__ void store() {
    softmax.reduce_sum();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane_column(lane) + r;
      if (lane < 4) storage.states[warp][row] = {softmax.maximum[r], softmax.sum[r]};
      float* to = storage.results(warp, row);
      float zeros = 0;
      if constexpr (Config::Format::kZeroPoints) zeros = ColumnWarp::sum_of_row(weights.zeros[r]);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int second = 0; second < 2; ++second) {
          float& at = to[Math::column(step, second, lane_row(lane))];
          at = out[step][2 * second + r];
          if constexpr (Config::kScaledKeys) at *= code_unit<typename Config::Cache>(second);
          if constexpr (Config::kWeighted) at = (at - zeros) * weights.power(r);
        }
      }
    }
  }

 private:
  using Element = typename Config::Element;
  using Math = Operands<Config>;
  static constexpr int kSteps = Config::kHeadDim / 16;
  static constexpr bool kKeepsQueries = !Config::kScaledKeys || Config::kDecodes;  // in registers

  /// The B operands of two steps.
  __device__ __forceinline__ void load_queries(std::uint32_t (*to)[2], int pair) const {
    std::uint32_t words[4];
    ldmatrix(words, shared_address(storage.q) + static_cast<std::uint32_t>(QueryRows<Config>::offset(lane % 8, lane / 8 + 4 * pair)));
#pragma unroll
    for (int j = 0; j < 4; ++j) to[j / 2][j % 2] = words[j];
  }

  /// Key of the lane's i-th score, counted from its first. A lane has rows 2t and 2t + 1, two of every 16 keys.
  static constexpr int kGroups = Config::kKeyTiles, kScores = 4 * kGroups;
  static __device__ constexpr int key_of(int i) { return i / 4 * 16 + i % 2 * 8; }

  /// keys x rows = K Q^T.
  __device__ __forceinline__ void compute_scores(float (&scores)[kScores], std::uint32_t keys, std::uint32_t scales) const {
    float sums[kGroups][2][4] = {};  // for even and odd steps: MMAs into the same accumulators wait for each other
#pragma unroll
    for (int load = 0; load < Math::kLoads; ++load) {
      std::uint32_t q[kKeepsQueries ? 1 : Math::kSteps][2];
#pragma unroll
      for (int i = 0; i < (kKeepsQueries ? 0 : Math::kSteps / 2); ++i) load_queries(&q[2 * i], load * Math::kSteps / 2 + i);
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        typename Math::Fragments k;
        const int first = warp * Config::kWarpKeys + group * kGroupKeys;
        Math::keys(k, keys, first, load, lane, scales);
        if constexpr (Config::Format::kBlockPowers) {
          BlockPowers<Config>::add_products_of_keys(sums[group], k, q, scales, first + lane_row(lane), load);
        } else {
#pragma unroll
          for (int i = 0; i < Math::kSteps; ++i) {
            const int step = load * Math::kSteps + i;
            const auto& b = kKeepsQueries ? queries[step] : q[i];
            mma<Element>(sums[group][step % 2], k[i], b[0], b[1]);
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int at = i % 2 * 2 + i / 2 % 2;
      scores[i] = sums[i / 4][0][at] + sums[i / 4][1][at];
    }
  }

  /// columns x rows += V^T P^T. `zero`: of the lane's keys.
  __device__ __forceinline__ void add_values(const float (&p)[kScores], const float (&zero)[kScores / 2], std::uint32_t values,
                                             std::uint32_t scales) {
    std::uint32_t b[kGroups][2];
#pragma unroll
    for (int i = 0; i < 2 * kGroups; ++i) {
      const int at = i / 2 * 4 + i % 2;
      const std::uint32_t pair = pack<Element>(p[at], p[at + 2]);  // both rows of a key
      if constexpr (Config::Format::kZeroPoints) {
        const float2 of = unpack<Element>(pair);
        weights.zeros[0] = fmaf(of.x, zero[i], weights.zeros[0]);
        weights.zeros[1] = fmaf(of.y, zero[i], weights.zeros[1]);
      }
      b[i / 2][i % 2] = movmatrix_trans(pair);
    }
#pragma unroll
    for (int load = 0; load < Math::kLoads; ++load) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        typename Math::Fragments v;
        const int first = warp * Config::kWarpKeys + group * kGroupKeys;
        Math::values(v, values, first, load, lane, scales);
        if constexpr (Config::Format::kBlockPowers) {
          BlockPowers<Config>::add_values(&out[load * Math::kSteps], v, b[group], scales, first + lane_column(lane), load);
        } else {
#pragma unroll
          for (int i = 0; i < Math::kSteps; ++i) mma<Element>(out[load * Math::kSteps + i], v[i], b[group][0], b[group][1]);
        }
      }
    }
  }

  const Params& params;
  const ScoreTransform<Warp> score;
  Storage<Config>& storage;
  const int warp;
  int lane;
  const WorkTile* work = nullptr;
  FullTiles full{};
  VisibleKeys seen[2];
  float factor[2], sum[2];
  std::uint32_t queries[kKeepsQueries ? kSteps : 1][2];
  float out[kSteps][4];
  OnlineSoftmax<ColumnWarp, kScores> softmax;
  ValueWeights<ColumnWarp, kScores, Config::Format::kBlockPowers> weights;
};

}  // namespace fovea::gpu::portable::paged_attention
