// SPDX-License-Identifier: Apache-2.0
/// Means and scales of channels from what channels.cuh knows of slices, in their order.
#pragma once

#include "gpu/cuda/portable/quantizers/channels.cuh"

namespace fovea::gpu::portable::quantizers {

/// A CTA for each sequence and head, a thread for each channel.
__global__ void __launch_bounds__(kThreads) finish_channels(const __grid_constant__ ChannelParams params) {
  const Side& side = params.side;
  const int channel = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.x) % side.heads;
  const Tokens tokens = sequence_of(params.batch, false, static_cast<int>(blockIdx.x) / side.heads);
  if (channel >= side.head_dim) return;
  const std::int32_t* cu = params.batch.cu_seqlens_k;
  const int slices = (params.batch.seq_k + kSliceTokens - 1) / kSliceTokens;  // of a sequence that is not ragged
  const std::int64_t first = cu != nullptr ? first_piece(cu, tokens.sequence, kSliceTokens) : tokens.sequence * slices;
  ChannelPart all{0, INFINITY, -INFINITY, 0};
  for (int slice = 0; slice * kSliceTokens < tokens.count; ++slice) {
    join(all, side.parts[((first + slice) * side.heads + head) * side.head_dim + channel]);
  }
  const auto of_sequence = [&](const Numbers& numbers) -> float& {
    return numbers.data[tokens.sequence * numbers.strides.batch + head * numbers.strides.head + channel];
  };
  float mean = 0;
  if (side.mean.data != nullptr) of_sequence(side.mean) = mean = static_cast<float>(all.sum / max(tokens.end - tokens.begin, 1));
  if (side.scale.data == nullptr) return;
  // Differences are rounded in order, so the largest of all is one of these two.
  const float low = all.low - mean, high = all.high - mean;
  const bool any = tokens.end > tokens.begin, finite = !any || (all.not_finite == 0 && is_finite(low) && is_finite(high));
  const float amax = any ? fmaxf(kSmallest, fmaxf(fabsf(low), fabsf(high))) : kSmallest, nan = __int_as_float(0x7fffffff);
  of_sequence(side.scale) = finite ? amax / 448.0f : nan;
  side.factors[(std::int64_t{tokens.sequence} * side.heads + head) * side.head_dim + channel] = finite ? 448.0f / amax : nan;
}

}  // namespace fovea::gpu::portable::quantizers
