// SPDX-License-Identifier: Apache-2.0
/// Correction: four warps, a thread for each row of both query tiles. It rescales sums in tensor memory
/// where the maximum of a row has grown, and at the end stores results and lse.
#pragma once

#include "gpu/common/softmax.cuh"
#include "gpu/cuda/sm100/attention/elements.cuh"
#include "gpu/cuda/sm100/attention/exact_row.cuh"
#include "gpu/cuda/sm100/attention/storage.cuh"
#include "gpu/cuda/sm100/attention/work.cuh"
#include "gpu/cuda/sm100/tensor_memory.cuh"
#include "gpu/cuda/sm100/thread.cuh"

namespace fovea::gpu::sm100::attention {

template <class Config>
class Correction {
 public:
  __device__ Correction(const Params& params_, Storage<Config>& storage_, const WorkTile& work_, std::uint32_t tensor_, int warp_)
      : params(params_),
        storage(storage_),
        work(work_),
        row(warp_ % kSoftmaxWarps * 32 + lane()),
        tensor(tensor_address(tensor_, first_lane(warp_), 0)) {}

  __device__ void operator()() {
    const int tiles = key_tiles(work);
    if (tiles == 0) {
      for (int tile = 0; tile < kTiles; ++tile) store_nothing(tile);
      return;
    }
    for (int tile = 0; tile < kTiles; ++tile) barrier_arrive(storage.weights_full[tile]);
#pragma unroll 1
    for (int number = 1; number < tiles; ++number) {
      for (int tile = 0; tile < kTiles; ++tile) correct(tile, number);
    }
    for (int tile = 0; tile < kTiles; ++tile) {
      barrier_wait(storage.statistics_full[tile], parity_of(tiles - 1));
      barrier_wait(storage.sums_full[tile], 0);
      tmem_fence_after_sync();
      store(tile, load_shared(storage.statistic[tile][row]), load_shared(storage.maximum[tile][row]));
    }
    sync_warp();
  }

 private:
  using Element = typename Config::Element;
  static constexpr int kPiece = 32;  // columns

  __device__ std::uint32_t sums_at(int tile, int column) const { return tensor + Config::sum_column(tile) + column; }

  /// Rescales sums before the MMA of key tile `number`. The MMAs of earlier ones are complete: the softmax
  /// has waited for scores that follow them.
  __device__ __forceinline__ void correct(int tile, int number) {
    barrier_wait(storage.statistics_full[tile], parity_of(number - 1));
    tmem_fence_after_sync();
    const float factor = load_shared(storage.statistic[tile][row]);
    barrier_arrive(storage.statistics_empty[tile]);
    if (warp_any(factor != 1)) {
#pragma unroll
      for (int column = 0; column < Config::kHeadDimV; column += kPiece) {
        std::uint32_t words[kPiece];
        tmem_load(words, sums_at(tile, column));
        tmem_load_wait(words);
#pragma unroll
        for (std::uint32_t& word : words) word = std::bit_cast<std::uint32_t>(std::bit_cast<float>(word) * factor);
        tmem_store(sums_at(tile, column), words);
      }
      tmem_store_wait();
      tmem_fence_before_sync();
    }
    barrier_arrive(storage.weights_full[tile]);
  }

  __device__ int token_of(int tile) const { return work.token + tile * kTileRows + row; }
  __device__ Element* out_of(int token) const {
    return static_cast<Element*>(params.out) + work.offset(params.out_strides, {token, work.head});
  }
  __device__ void store_lse(int token, float value) const {
    if (params.lse != nullptr) params.lse[work.offset(params.lse_strides, {token, work.head})] = value * kLn2;
  }

  /// A row of which no key is visible.
  __device__ void store_nothing(int tile) const {
    const int token = token_of(tile);
    if (token >= work.seq_q) return;
    for (int column = 0; column < params.head_dim_v; column += 8) store_eight(out_of(token) + column, uint4{});
    store_lse(token, -INFINITY);
  }

  /// The row's results. `maximum`: of its scores; `sum`: of its weights.
  __device__ __forceinline__ void store(int tile, float sum, float maximum) const {
    const int token = token_of(tile);
    const bool exists = token < work.seq_q;
    const float base = maximum * params.scale_log2;
    float all = sum;
    if (params.sink != nullptr) all += exp2f(fmaf(params.sink[work.head], kLog2e, -base));
    const float factor = sum == 0 ? 0 : 1 / all;
    float zero = 0;  // NaN if a sum is not finite
#pragma unroll
    for (int column = 0; column < Config::kHeadDimV; column += kPiece) {
      std::uint32_t words[kPiece];
      sync_warp();
      tmem_load(words, sums_at(tile, column));
      tmem_load_wait(words);
#pragma unroll
      for (const std::uint32_t word : words) zero = fmaf(std::bit_cast<float>(word), 0.0f, zero);
      if (exists) store_piece(out_of(token), column, words, factor);
    }
    tmem_fence_before_sync();
    if (!exists) return;
    // Masked keys, or a sink that hides all keys, give values the weight 0, and 0 times NaN is NaN.
    const bool hides = work.full_first > work.first || work.full_last < work.last || params.sink != nullptr;
    if (zero != 0 && hides && factor != 0) ExactRow<Element>(params, work, token)(out_of(token), factor * sum);
    store_lse(token, lse_of(sum, base));
  }

  __device__ __forceinline__ void store_piece(Element* out, int column, const std::uint32_t (&sums)[kPiece], float factor) const {
#pragma unroll
    for (int i = 0; i < kPiece; i += 8) {
      if (column + i >= params.head_dim_v) continue;
      const auto two = [&](int at) {
        const float2 x = mul2({std::bit_cast<float>(sums[i + at]), std::bit_cast<float>(sums[i + at + 1])}, both(factor));
        return factor == 0 ? 0 : pack<Element>(x);
      };
      store_eight(out + column + i, {two(0), two(2), two(4), two(6)});
    }
  }
  static __device__ void store_eight(Element* to, uint4 words) { *reinterpret_cast<uint4*>(to) = words; }

  const Params& params;
  Storage<Config>& storage;
  const WorkTile& work;
  const int row;
  const std::uint32_t tensor;  // of the warp's rows
};

}  // namespace fovea::gpu::sm100::attention
