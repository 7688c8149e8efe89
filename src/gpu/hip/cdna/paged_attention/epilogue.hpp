// SPDX-License-Identifier: Apache-2.0
/// The steps after a wave's last MMA: waves and splits merge, rows are normalised and stored.
#pragma once

#include "gpu/hip/cdna/paged_attention/exact_row.hpp"
#include "gpu/hip/cdna/paged_attention/merge.hpp"

namespace fovea::gpu::cdna::paged_attention {

template <class Config>
class Epilogue {
 public:
  using Element = typename Config::Element;
  using Storage = typename Element::Storage;

  __device__ Epilogue(const Params& params_, const Work& work_, const Rows<Config>& rows_, const ScoreTransform<Wave>& scores_)
      : params(params_), work(work_), rows(rows_), scores(scores_), scale_log2(scores_.scale_log2) {}

  __device__ __forceinline__ void operator()(State<Config>& state) const {
    state.reduce_sums();
    if (!Merge<Config>(params, work, rows, scale_log2)(state)) return;
#pragma unroll
    for (int b = 0; b < Config::kRowBlocks; ++b) finish(b, state);
  }

 private:
  /// The factor that turns accumulators, relative to 2^base, into results.
  __device__ __forceinline__ float normaliser(int block, float sum, float base) const {
    const float sink = params.sink == nullptr ? 0 : exp2(fmaf(params.sink[rows.head[block]], kLog2e, -base));
    const float value_scale = params.v_scale == nullptr ? 1 : params.v_scale[work.kv_head * params.v_scale_stride];
    return sum == 0 ? 0 : value_scale / (sum + sink);
  }

  __device__ __forceinline__ void finish(int block, State<Config>& state) const {
    const RowSoftmax& softmax = state.softmax[block];
    const float base = softmax.maximum * scale_log2;
    const float factor = normaliser(block, softmax.sum, base);
    const int token = rows.token[block], head = rows.head[block];
    if (params.lse != nullptr && rows.present[block] && lane() < 16) {
      const std::int64_t at = before_rows(work, params.lse_strides) + token * params.lse_strides.row + head * params.lse_strides.head;
      params.lse[at] = lse_of(softmax.sum, base) * kLn2;
    }
    Storage* to = static_cast<Storage*>(params.out) + before_rows(work, params.out_strides) + token * params.out_strides.row +
                  head * params.out_strides.head;
    const std::uint32_t again = rows_not_finite(state.out[block], factor);
    if (rows.present[block] && (again >> lane() % 16 & 1) == 0) store(to, state.out[block], factor);
    if (again != 0) compute_again(block, again, factor * softmax.sum);
  }

  /// The lane's accumulators are channels in groups of kChannels: group 4 (l / 16) + r of a panel at r.
  __device__ __forceinline__ void store(Storage* to, const Float4 (&out)[Config::kOut], float factor) const {
#pragma unroll
    for (int p = 0; p < Config::kPanels; ++p) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int channel = p * Config::kPanel + Config::kChannels * (4 * (lane() / 16) + r);
        if (!Config::within(channel, params.head_dim_v)) continue;
        Words<Config::kChannels / 2> pairs;
#pragma unroll
        for (int x = 0; x < Config::kChannels; x += 2) {
          const int i = p * Config::kChannels + x;
          pairs.word[x / 2] = Element::pair(out[i][r] * factor, out[i + 1][r] * factor);
        }
        store_unaligned(to + channel, pairs);
      }
    }
  }

  // ---- what is not finite ---------------------------------------------------------------------------------------------------------

  /// The rows of a block with something that is not finite, which may have come from a value that the row does not see: 0 * NaN is NaN.
  __device__ __forceinline__ std::uint32_t rows_not_finite(const Float4 (&out)[Config::kOut], float factor) const {
    float zero = 0;
#pragma unroll
    for (int i = 0; i < Config::kOut; ++i) {
#pragma unroll
      for (int r = 0; r < 4; ++r) zero = fmaf(out[i][r] * factor, 0.0f, zero);
    }
    const std::uint64_t lanes = ballot(zero != 0);
    return static_cast<std::uint32_t>((lanes | lanes >> 16 | lanes >> 32 | lanes >> 48) & 0xffff);
  }

  __device__ __forceinline__ void compute_again(int block, std::uint32_t which, float share) const {
    const ExactRow<Config> exact(params, work, scores);
#pragma unroll 1
    for (int i = 0; i < 16; ++i) {
      if ((which >> i & 1) == 0 || of_lane(rows.present[block], i) == 0) continue;
      const float of_row = std::bit_cast<float>(of_lane(std::bit_cast<int>(share), i));
      exact(of_lane(rows.token[block], i), of_lane(rows.head[block], i), of_row);
    }
  }

  const Params& params;
  const Work& work;
  const Rows<Config>& rows;
  const ScoreTransform<Wave>& scores;
  const float scale_log2;
};

}  // namespace fovea::gpu::cdna::paged_attention
