// SPDX-License-Identifier: Apache-2.0
/// Rows of the result, as the attention kernels and the combining kernel store them.
#pragma once

#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/sm90/fragment.cuh"
#include "gpu/cuda/sm90/latent_attention/work.cuh"
#include "gpu/cuda/sm90/thread.cuh"

namespace fovea::gpu::sm90::latent {

inline constexpr float kLeastScale = 1.1754944e-38f;  // above 0, so that minus infinity stays so

/// log2(e) times the scale of scores: the scale of the call times the magnitude of the cache's. A scale that is NaN is left out, and
/// OutputRow makes the rows with keys NaN.
__device__ inline float scale_log2_of(const Params& params) {
  return fmaxf(params.scale_log2 * (params.cache_scale != nullptr ? fabsf(*params.cache_scale) : 1.0f), kLeastScale);
}

__device__ inline bool has_nan_scale(const Params& params) { return params.cache_scale != nullptr && isnan(*params.cache_scale); }

/// The sum of a row with the sink's term, both relative to 2^base.
__device__ inline float sum_with_sink(const Params& params, std::uint32_t head, float sum, float base) {
  return params.sink == nullptr ? sum : sum + exp2f(fmaf(params.sink[head], kLog2e, -base));
}

/// A row of a query tile. Rows past the last token are not stored.
struct OutputRow {
  __device__ OutputRow(const Params& params, const Sequence& sequence, int kv_head, int packed) {
    const PackedRow row(params, kv_head, packed);
    head = row.head;
    valid = row.token < sequence.q_rows;
    const int lane = lane_index();
    out = row.offset(sequence, params.out_strides) + lane % 2 * 8 + lane % 4 / 2 * 4;
    asm volatile("" : "+l"(out));  // else it is recomputed for every store
    base = params.out;
    if (params.lse != nullptr) lse = params.lse + row.offset(sequence, params.lse_strides);
    if (params.max_logits != nullptr) largest = params.max_logits + row.offset(sequence, params.max_logits_strides);
  }

  /// Four lanes hold 16 columns of a row; each has two neighbours of every eight (x). They exchange halves, so that each stores four
  /// columns at once and together they store whole sectors. All lanes of the warp call this.
  template <class Element>
  __device__ void store(int column, int lane, const float (&x)[4]) const {
    std::uint32_t left = pack<Element>(x[0], x[1]), right = pack<Element>(x[2], x[3]);
    // A 2 x 2 transposition: the lower lane of two ends with the left columns of both, the upper lane with the right ones.
    const bool upper = lane % 2 == 1;
    const std::uint32_t received = __shfl_xor_sync(~0u, upper ? left : right, 1);
    (upper ? left : right) = received;
    if (valid) *reinterpret_cast<uint2*>(static_cast<Element*>(base) + out + column) = {left, right};
  }

  /// Factor from accumulators, relative to 2^base, to the result: V's scale over the sum with the sink's term.
  __device__ float normalise(const Params& params, float sum, float base) const {
    if (sum == 0) return 0;
    return (params.cache_scale != nullptr ? fabsf(*params.cache_scale) : 1.0f) / sum_with_sink(params, head, sum, base);
  }

  /// `value` is in base 2. With a scale that is NaN, so is the lse of a row with keys.
  __device__ void store_lse(const Params& params, float value) const {
    if (!valid || lse == nullptr) return;
    *lse = has_nan_scale(params) && value > -INFINITY ? NAN : value * kLn2;
  }
  /// `score` is as MMAs leave it. Scores that are NaN do not count.
  __device__ void store_largest(const Params& params, float score, float scale_log2) const {
    if (valid && largest != nullptr) *largest = has_nan_scale(params) ? -INFINITY : score * scale_log2 * kLn2;
  }

 private:
  void* base = nullptr;
  float *lse = nullptr, *largest = nullptr;
  std::int64_t out = 0;  // offset of this lane's first column
  std::uint32_t head = 0;
  bool valid = false;
};

}  // namespace fovea::gpu::sm90::latent
