// SPDX-License-Identifier: Apache-2.0
/// The accumulators and the softmax of a wave's rows, and how two of them merge: of waves through LDS, of splits through global memory.
#pragma once

#include "gpu/hip/cdna/paged_attention/config.hpp"
#include "gpu/hip/cdna/softmax.hpp"

namespace fovea::gpu::cdna::paged_attention {

template <class Config>
struct State {
  static constexpr int kWords = Config::kStateWords;

  RowSoftmax softmax[Config::kRowBlocks];          // of row lane() % 16 of each block
  Float4 out[Config::kRowBlocks][Config::kOut]{};  // MMA x of panel p at p * kChannels + x; relative to the maximum

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int b = 0; b < Config::kRowBlocks; ++b) {
      softmax[b].maximum = -INFINITY;
      softmax[b].sum = 0;
#pragma unroll
      for (Float4& d : out[b]) d = Float4{};
    }
  }

  __device__ __forceinline__ void reduce_sums() {
#pragma unroll
    for (int b = 0; b < Config::kRowBlocks; ++b) softmax[b].reduce_sum();
  }

  /// Multiplies what is relative to the maximum of a block.
  __device__ __forceinline__ void rescale(int block, float factor) {
#pragma unroll
    for (Float4& d : out[block]) d *= factor;
  }

  /// Joins `other`, whose keys come after. Their sums are reduced.
  __device__ __forceinline__ void merge(const State& other, float scale_log2) {
#pragma unroll
    for (int b = 0; b < Config::kRowBlocks; ++b) {
      RowSoftmax& own = softmax[b];
      const RowSoftmax& its = other.softmax[b];
      const float to = fmaxf(own.maximum, its.maximum);
      const float factor = rescale_factor<Wave>(own.maximum, to, scale_log2),
                  its_factor = rescale_factor<Wave>(its.maximum, to, scale_log2);
      own.sum = own.sum * factor + its.sum * its_factor;
      own.maximum = to;
#pragma unroll
      for (int i = 0; i < Config::kOut; ++i) out[b][i] = out[b][i] * factor + other.out[b][i] * its_factor;
    }
  }

  /// `store(word, value)` of the lane's words: accumulators first, four at a time.
  template <class Store>
  __device__ __forceinline__ void store(const Store& store) const {
#pragma unroll
    for (int b = 0; b < Config::kRowBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < Config::kOut; ++i) store(kLanes * 4 * (b * Config::kOut + i) + 4 * lane(), out[b][i]);
    }
#pragma unroll
    for (int b = 0; b < Config::kRowBlocks; ++b) {
      store(numbers(b) + lane(), softmax[b].maximum);
      store(numbers(b) + kLanes + lane(), softmax[b].sum);
    }
  }
  /// `load(word, value)` sets the value.
  template <class Load>
  __device__ __forceinline__ void load(const Load& load) {
#pragma unroll
    for (int b = 0; b < Config::kRowBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < Config::kOut; ++i) load(kLanes * 4 * (b * Config::kOut + i) + 4 * lane(), out[b][i]);
    }
#pragma unroll
    for (int b = 0; b < Config::kRowBlocks; ++b) {
      load(numbers(b) + lane(), softmax[b].maximum);
      load(numbers(b) + kLanes + lane(), softmax[b].sum);
    }
  }

 private:
  static constexpr int numbers(int block) { return kLanes * (4 * Config::kOut * Config::kRowBlocks + 2 * block); }
};

}  // namespace fovea::gpu::cdna::paged_attention
