// SPDX-License-Identifier: Apache-2.0
/// The accumulators and the softmax of a wave's rows, and how several of them merge: of waves through LDS, of splits through global memory.
#pragma once

#include "gpu/hip/cdna/paged_attention/config.hpp"
#include "gpu/hip/cdna/softmax.hpp"

namespace fovea::gpu::cdna::paged_attention {

/// One of `kParts` parts has the accumulators of a share of the channels, and the softmax of every row.
template <class Config, int kParts = 1>
struct State {
  static constexpr int kWords = Config::kStateWords;  // of the whole
  static constexpr int kOut = Config::kOut / kParts;

  RowSoftmax softmax[Config::kRowBlocks];  // of row lane() % 16 of each block
  Float4 out[Config::kRowBlocks][kOut]{};  // of the whole: MMA x of panel p at p * kChannels + x; relative to the maximum

  __device__ __forceinline__ void reduce_sums() {
#pragma unroll
    for (int b = 0; b < Config::kRowBlocks; ++b) softmax[b].reduce_sum();
  }

  /// Multiplies what is relative to the maximum of a block. Accumulators in AGPRs move for that alone, not where none is to be multiplied.
  __device__ __forceinline__ void rescale(int block, float factor) {
#pragma unroll
    for (Float4& d : out[block]) d = Config::kWide ? as_accumulator(as_accumulator(d) * factor) : d * factor;
  }

  /// Joins `others`, whose keys come after, in their order. Their sums are reduced.
  template <int kOthers>
  __device__ __forceinline__ void merge(const State (&others)[kOthers], float scale_log2) {
#pragma unroll
    for (int b = 0; b < Config::kRowBlocks; ++b) {
      RowSoftmax& own = softmax[b];
      float to = own.maximum;
#pragma unroll
      for (const State& other : others) to = fmaxf(to, other.softmax[b].maximum);
      const float factor = rescale_factor<Wave>(own.maximum, to, scale_log2);
      own.maximum = to;
      own.sum *= factor;
      rescale(b, factor);
#pragma unroll
      for (const State& other : others) {
        const float its_factor = rescale_factor<Wave>(other.softmax[b].maximum, to, scale_log2);
        own.sum += other.softmax[b].sum * its_factor;
#pragma unroll
        for (int i = 0; i < kOut; ++i) out[b][i] += other.out[b][i] * its_factor;
      }
    }
  }

  /// `store(block, word, value)` of the lane's values: lane l of a block has as many words as the value, from `word` and those of the lanes
  /// before it on. The first part also stores what all have.
  template <class Store>
  __device__ __forceinline__ void store(const Store& store, int part = 0) const {
#pragma unroll
    for (int b = 0; b < Config::kRowBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < kOut; ++i) store(b, accumulators(b, i, part), out[b][i]);
      if (part != 0) continue;
      store(b, numbers(b), softmax[b].maximum);
      store(b, numbers(b) + kLanes, softmax[b].sum);
    }
  }
  /// `load(block, word, value)` sets the value.
  template <class Load>
  __device__ __forceinline__ void load(const Load& load, int part = 0) {
#pragma unroll
    for (int b = 0; b < Config::kRowBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < kOut; ++i) load(b, accumulators(b, i, part), out[b][i]);
      load(b, numbers(b), softmax[b].maximum);
      load(b, numbers(b) + kLanes, softmax[b].sum);
    }
  }

 private:
  static __device__ __forceinline__ int accumulators(int block, int i, int part) {
    return kLanes * 4 * (block * Config::kOut + part * kOut + i);
  }
  static constexpr int numbers(int block) { return kLanes * (4 * Config::kOut * Config::kRowBlocks + 2 * block); }
};

}  // namespace fovea::gpu::cdna::paged_attention
