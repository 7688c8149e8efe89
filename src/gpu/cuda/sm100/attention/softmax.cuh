// SPDX-License-Identifier: Apache-2.0
/// Softmax: four warps for each query tile, a thread for each row. gpu/common/softmax.cuh explains when
/// the maximum follows, and how large numbers are treated.
#pragma once

#include "gpu/common/softmax.cuh"
#include "gpu/cuda/sm100/attention/elements.cuh"
#include "gpu/cuda/sm100/attention/storage.cuh"
#include "gpu/cuda/sm100/attention/work.cuh"
#include "gpu/cuda/sm100/tensor_memory.cuh"
#include "gpu/cuda/sm100/thread.cuh"

namespace fovea::gpu::sm100::attention {

/// The lowest `count` bits.
__device__ constexpr std::uint32_t lowest_bits(int count) {
  return count <= 0 ? 0 : count >= 32 ? ~std::uint32_t{0} : (std::uint32_t{1} << count) - 1;
}

template <class Config>
class Softmax {
 public:
  /// `warp_`: number of the warp in the CTA. `tensor`: address of tensor memory.
  __device__ Softmax(const Params& params, Storage<Config>& storage_, const WorkTile& work_, std::uint32_t tensor, int warp_)
      : storage(storage_),
        work(work_),
        tile(warp_ / kSoftmaxWarps),
        row(warp_ % kSoftmaxWarps * 32 + lane()),
        scores_at(tensor_address(tensor, first_lane(warp_), Config::score_column(warp_ / kSoftmaxWarps))),
        scale(params.scale_log2),
        seen(work_.keys_of(work_.token + tile * kTileRows + row)) {}

  __device__ void operator()() {
    const int tiles = key_tiles(work);
    if (tiles == 0) return;
#pragma unroll 1
    for (int number = 0; number < tiles; ++number) turn(number);
    store_shared(storage.maximum[tile][row], maximum);
    publish(sum);
  }

 private:
  static constexpr int kPiece = 32, kPieces = kTileRows / kPiece;
  using Scores = float[kTileRows];

  /// Turns the scores of a key tile into weights, in their place.
  __device__ __forceinline__ void turn(int number) {
    float scores[kTileRows];
    load(scores, number);
    const float to = followed(maximum, largest_of(scores), scale), factor = rescale_factor<OneRow>(maximum, to, scale);
    maximum = to;
    if (number > 0) publish(factor);
    const float offset = base_of(scores);
    sync_warp();
    sum = sum * factor + exponentiate(scores, offset);
    tmem_store_wait();
    tmem_fence_before_sync();
    barrier_arrive(storage.weights_full[tile]);
  }

  /// Loads the row's scores. Keys that it does not see get minus infinity.
  __device__ __forceinline__ void load(Scores& scores, int number) const {
    barrier_wait(storage.scores_full[tile], parity_of(number));
    tmem_fence_after_sync();
    std::uint32_t words[kPieces][kPiece];
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) tmem_load(words[piece], scores_at + piece * kPiece);
    tmem_load_wait(words[0], words[1], words[2], words[3]);
#pragma unroll
    for (int i = 0; i < kTileRows; ++i) scores[i] = std::bit_cast<float>(words[i / kPiece][i % kPiece]);
    const int key_tile_ = key_tile(work, number);
    if (key_tile_ < work.full_first || key_tile_ >= work.full_last) hide(scores, key_tile_ * kTileRows);
  }
  __device__ __forceinline__ void hide(Scores& scores, int first_key) const {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const int from = first_key + piece * kPiece;
      const std::uint32_t shown = lowest_bits(seen.end - from) & ~lowest_bits(seen.begin - from);
#pragma unroll
      for (int i = 0; i < kPiece; ++i) {
        float& score = scores[piece * kPiece + i];
        score = (shown >> i & 1) != 0 ? score : -INFINITY;
      }
    }
  }

  static __device__ __forceinline__ float largest_of(const Scores& scores) {
    constexpr int kChains = 4;
    float largest[kChains];
#pragma unroll
    for (int i = 0; i < kTileRows; ++i) largest[i % kChains] = i < kChains ? scores[i] : fmaxf(largest[i % kChains], scores[i]);
    return fmaxf(fmaxf(largest[0], largest[1]), fmaxf(largest[2], largest[3]));
  }

  /// Returns the offset that is subtracted from a score times the scale. Where it would not be plain, subtracts the maximum
  /// from the scores instead.
  __device__ __forceinline__ float base_of(Scores& scores) const {
    const float offset = maximum * scale;
    if (is_plain(offset)) return offset;
    if (maximum != -INFINITY) {
#pragma unroll
      for (float& score : scores) score -= maximum;
    }
    return 0;
  }

  /// Stores the weights. Returns their sum, before they are rounded.
  __device__ __forceinline__ float exponentiate(const Scores& scores, float offset) const {
    float2 total[2]{};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t words[kPiece];
#pragma unroll
      for (int i = 0; i < kPiece; ++i) {
        const int pair = half * kPiece + i;
        const float2 exponent = fma2({scores[2 * pair], scores[2 * pair + 1]}, both(scale), both(-offset));
        const bool by_polynomial = pair % Config::kTuning.polynomial_every == Config::kTuning.polynomial_every - 1;
        const float2 weights = by_polynomial ? exp2_by_polynomial(exponent) : float2{exp2_by_unit(exponent.x), exp2_by_unit(exponent.y)};
        total[i % 2] = add2(total[i % 2], weights);
        words[i] = pack<typename Config::Element>(weights);
      }
      tmem_store(scores_at + half * kPiece, words);
    }
    const float2 both_chains = add2(total[0], total[1]);
    return both_chains.x + both_chains.y;
  }

  /// Hands a number to the correction, once it has read the one before.
  __device__ __forceinline__ void publish(float statistic) {
    if (published > 0) barrier_wait(storage.statistics_empty[tile], parity_of(published - 1));
    store_shared(storage.statistic[tile][row], statistic);
    tmem_fence_before_sync();
    barrier_arrive(storage.statistics_full[tile]);
    ++published;
  }

  Storage<Config>& storage;
  const WorkTile& work;
  const int tile, row;
  const std::uint32_t scores_at;  // of the warp's rows
  const float scale;
  const WorkTile::Keys seen;  // by the row
  float maximum = -INFINITY, sum = 0;
  int published = 0;
};

}  // namespace fovea::gpu::sm100::attention
