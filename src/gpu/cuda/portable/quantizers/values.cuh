// SPDX-License-Identifier: Apache-2.0
/// V as e4m3 or f16, channels less their means and times their factors.
#pragma once

#include "gpu/common/quantize.cuh"
#include "gpu/cuda/portable/quantizers/channels.cuh"

namespace fovea::gpu::portable::quantizers {

__device__ inline unsigned half_bits(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}

/// 128 tokens of a head. Tokens that do not count become zeros.
template <class Element, int kHeadDim, bool kAligned, bool kF16>
__device__ __forceinline__ void encode_values(const Params& params, const Place& place) {
  constexpr int kColumns = kHeadDim / kChunk, kRows = kBlockTokens / kRowsAtOnce, kBytes = kF16 ? 2 : 1;
  const Side& side = params.v;
  const Tokens tokens = place.tokens;
  const int group = static_cast<int>(threadIdx.x) / kColumns, column = static_cast<int>(threadIdx.x) % kColumns * kChunk;
  const bool has_rows = group < kRowsAtOnce;
  const int first = tokens.token + group;
  const std::byte* from = row_of(side.from, place, group, sizeof(Element)) + column * sizeof(Element);
  const std::int64_t step = kRowsAtOnce * side.from.strides.row * static_cast<std::int64_t>(sizeof(Element));
  Chunk<Element> chunk[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int token = first + i * kRowsAtOnce;
    const bool counts = has_rows && tokens.counts(token);
    chunk[i] = {};
    if (counts) chunk[i] = load_chunk<Element, kAligned, true>(from + i * step);
  }
  if (side.arrivals != nullptr) {
    if (threadIdx.x == 0) wait_for_channels(side, tokens.sequence, place.head);
    __syncthreads();
  }
  if (!has_rows) return;
  float mean[kChunk], factor[kChunk];
  const std::int64_t channels = (std::int64_t{tokens.sequence} * side.heads + place.head) * kHeadDim + column;
  load_numbers(mean, side.means, channels, 0);
  load_numbers(factor, side.factors, channels, 1);
  std::byte* to = row_of(side.to, place, group, kBytes) + column * kBytes;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int token = first + i * kRowsAtOnce;
    if (token >= tokens.count) continue;
    const auto value = [&](int j) {
      const float x = (chunk[i][j] - mean[j]) * factor[j];
      return !tokens.counts(token) || (!kF16 && isnan(factor[j])) ? 0 : x;
    };
    unsigned word[2 * kBytes];
#pragma unroll
    for (int w = 0; w < 2 * kBytes; ++w) {
      word[w] = kF16 ? half_bits(value(2 * w), value(2 * w + 1))
                     : e4m3_codes(value(4 * w), value(4 * w + 1)) | e4m3_codes(value(4 * w + 2), value(4 * w + 3)) << 16;
    }
    store_words<kAligned>(to + i * kRowsAtOnce * side.to.strides.row * kBytes, word);
  }
}

}  // namespace fovea::gpu::portable::quantizers
