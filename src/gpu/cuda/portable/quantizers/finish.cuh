// SPDX-License-Identifier: Apache-2.0
/// Means and scales of channels from the sums and extremes of all tokens, and the wait for them.
#pragma once

#include "gpu/cuda/portable/quantizers/tokens.cuh"

namespace fovea::gpu::portable::quantizers {

/// NaN if one of the values is.
__device__ inline void join_extremes(ChannelPart& part, float low, float high) {
  part.low = low < part.low || isnan(low) ? low : part.low;
  part.high = high > part.high || isnan(high) ? high : part.high;
}
__device__ inline void join(ChannelPart& part, const ChannelPart& other) {
  part.sum += other.sum;
  join_extremes(part, other.low, other.high);
}
/// Loads a number of another CTA of this launch, past this multiprocessor's L1.
__device__ inline ChannelPart load_part(const ChannelPart* from) {
  return __builtin_bit_cast(ChannelPart, __ldcg(reinterpret_cast<const uint4*>(from)));
}

template <int kHeadDim>
__device__ inline void finish_channel(const Side& side, const Place& place, int channel, const ChannelPart& all) {
  const Tokens& tokens = place.tokens;
  const auto of_sequence = [&](const Numbers& numbers) -> float& {
    return numbers.data[tokens.sequence * numbers.strides.batch + place.head * numbers.strides.head + channel];
  };
  const std::int64_t dense = (std::int64_t{tokens.sequence} * side.heads + place.head) * kHeadDim + channel;
  float mean = 0;
  if (side.means != nullptr) {
    mean = static_cast<float>(all.sum / max(tokens.end - tokens.begin, 1));
    of_sequence(side.mean) = side.means[dense] = mean;
  }
  if (side.factors == nullptr) return;
  // Differences are rounded in order, so the largest of all is one of these two.
  const float low = all.low - mean, high = all.high - mean;
  const bool any = tokens.end > tokens.begin, finite = !any || (is_finite(low) && is_finite(high));
  const float amax = any ? fmaxf(kSmallest, fmaxf(fabsf(low), fabsf(high))) : kSmallest, nan = __int_as_float(0x7fffffff);
  of_sequence(side.scale) = finite ? amax / 448.0f : nan;
  side.factors[dense] = finite ? 448.0f / amax : nan;
}

/// Waits until the channels of a head are finished. One thread calls it; a barrier after it makes the CTA wait.
__device__ inline void wait_for_channels(const Side& side, int sequence, int head) {
  const volatile unsigned* arrivals = side.arrivals + std::int64_t{sequence} * side.heads + head;
  while (*arrivals != kReady) __nanosleep(100);
  __threadfence();
}

/// Means or factors of a chunk's channels, after the wait; `otherwise` without any.
__device__ __forceinline__ void load_numbers(float (&to)[kChunk], const float* from, std::int64_t index, float otherwise) {
#pragma unroll
  for (int i = 0; i < kChunk; i += 4) {
    const float4 some =
        from != nullptr ? *reinterpret_cast<const float4*>(from + index + i) : float4{otherwise, otherwise, otherwise, otherwise};
    to[i] = some.x, to[i + 1] = some.y, to[i + 2] = some.z, to[i + 3] = some.w;
  }
}

}  // namespace fovea::gpu::portable::quantizers
