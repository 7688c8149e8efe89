// SPDX-License-Identifier: Apache-2.0
/// Quantisation of V to e4m3 or f16: (v - mean) * factor by channel. A CTA has 128 tokens of a head.
#pragma once

#include "gpu/cuda/common/quantize.cuh"
#include "gpu/cuda/common/value_tiles.hpp"
#include "gpu/cuda/portable/quantizers/channels.cuh"

namespace fovea::gpu::portable::quantizers {

__device__ inline unsigned half_bits(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}

/// A value tile. A gap after every eight units keeps neighbouring chunks of channels in different banks.
template <int kHeadDim>
struct TileShared {
  static constexpr bool kExists = kHeadDim <= 128;
  static constexpr int kUnits = kExists ? kBlockTokens / kValueUnit * kHeadDim : 1;
  uint4 units[kUnits + kUnits / 8];

  static __device__ int at(int unit) { return unit + unit / 8; }
};

/// Masked tokens become zeros. A thread has eight channels of half a unit of tokens, at neighbouring places of it.
template <class Element, int kHeadDim, bool kAligned>
class ValueQuantizer {
 public:
  __device__ __forceinline__ ValueQuantizer(const Params& params_, const Place& place_)
      : params(params_), side(params_.v), place(place_), tokens(place_.tokens) {}

  __device__ __forceinline__ void operator()(TileShared<kHeadDim>& shared) {
    load();
    if (side.arrivals != nullptr) {
      if (threadIdx.x == 0) wait_for_channels(side, tokens.sequence, place.head);
      __syncthreads();
    }
    const std::int64_t channels = (std::int64_t{tokens.sequence} * side.heads + place.head) * kHeadDim + column;
    load_numbers(mean, side.means, channels, 0);
    load_numbers(factor, side.factors, channels, 1);
    if (params.values_as_f16) return store_rows<true>();
    if constexpr (TileShared<kHeadDim>::kExists) {
      if (params.values_in_tiles) return store_tile(shared);
    }
    store_rows<false>();
  }

 private:
  static constexpr int kColumns = kHeadDim / kChunk, kRows = kBlockTokens / kRowsAtOnce;  // of a thread
  static_assert(2 * kRows == kValueUnit);

  /// Offset of the thread's row i from its first one.
  static __device__ constexpr int row(int i) { return value_key(i); }
  __device__ int token(int i) const { return tokens.token + first + row(i); }

  __device__ __forceinline__ void load() {
    const std::byte* from = row_of(side.from, place, first, sizeof(Element)) + column * sizeof(Element);
    const std::int64_t step = side.from.strides.row * static_cast<std::int64_t>(sizeof(Element));
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      chunk[i] = {};
      if (has_rows && tokens.counts(token(i))) chunk[i] = load_chunk<Element, kAligned, true>(from + row(i) * step);
    }
  }

  /// The value in row i, channel j.
  template <bool kF16>
  __device__ __forceinline__ float value(int i, int j) const {
    const float x = (chunk[i][j] - mean[j]) * factor[j];
    return !tokens.counts(token(i)) || (!kF16 && isnan(factor[j])) ? 0 : x;
  }
  /// Four values in row i, from channel j on.
  __device__ __forceinline__ unsigned codes(int i, int j) const {
    return e4m3_codes(value<false>(i, j), value<false>(i, j + 1)) | e4m3_codes(value<false>(i, j + 2), value<false>(i, j + 3)) << 16;
  }

  template <bool kF16>
  __device__ __forceinline__ void store_rows() const {
    constexpr int kBytes = kF16 ? 2 : 1;
    if (!has_rows) return;
    std::byte* to = row_of(side.to, place, first, kBytes) + column * kBytes;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (token(i) >= tokens.count) continue;
      unsigned word[2 * kBytes];
#pragma unroll
      for (int w = 0; w < 2 * kBytes; ++w) word[w] = kF16 ? half_bits(value<kF16>(i, 2 * w), value<kF16>(i, 2 * w + 1)) : codes(i, 4 * w);
      store_words<kAligned>(to + row(i) * side.to.strides.row * kBytes, word);
    }
  }

  __device__ __forceinline__ void store_tile(TileShared<kHeadDim>& shared) const {
    if (has_rows) {
      uint4& unit = shared.units[shared.at(first / kValueUnit * kHeadDim + column)];  // of the first channel; the others' follow
      unsigned* to = reinterpret_cast<unsigned*>(&unit) + value_place(first % kValueUnit) / 4;
#pragma unroll
      for (int i = 0; i < kRows; i += 4) {
#pragma unroll
        for (int j = 0; j < kChunk; j += 4) {
          unsigned of_channel[4];
          transpose_bytes(of_channel, {codes(i, j), codes(i + 1, j), codes(i + 2, j), codes(i + 3, j)});
#pragma unroll
          for (int c = 0; c < 4; ++c) to[(j + c) * kValueUnit / 4 + i / 4] = of_channel[c];
        }
      }
    }
    __syncthreads();
    const bool ragged = params.batch.cu_seqlens_k != nullptr;
    const std::int64_t tile =
        first_value_tile(ragged, params.batch.seq_k, tokens.sequence, tokens.first, kBlockTokens) + tokens.token / kBlockTokens;
    auto* to = static_cast<uint4*>(side.to.data) + (tile * side.heads + place.head) * shared.kUnits;
    for (int unit = static_cast<int>(threadIdx.x); unit < shared.kUnits; unit += threads_for(kHeadDim)) {
      __stcs(to + unit, shared.units[shared.at(unit)]);
    }
  }

  const Params& params;
  const Side& side;
  const Place& place;
  const Tokens tokens;
  const int group = static_cast<int>(threadIdx.x) / kColumns, column = static_cast<int>(threadIdx.x) % kColumns * kChunk;
  const int first = group / 2 * kValueUnit + value_key(group % 2 * kRows);  ///< row of the item
  const bool has_rows = group < kRowsAtOnce;
  Chunk<Element> chunk[kRows];
  float mean[kChunk], factor[kChunk];
};

}  // namespace fovea::gpu::portable::quantizers
