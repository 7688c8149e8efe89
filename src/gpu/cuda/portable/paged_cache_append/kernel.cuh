// SPDX-License-Identifier: Apache-2.0
/// Copies new rows of K and V to the slots of a cache. A thread takes one pack of the rows of a few tokens, so its head and
/// scale stay the same.
#pragma once

#include <limits>
#include <type_traits>

#include "gpu/cuda/common/element.cuh"
#include "gpu/cuda/common/quantize.cuh"
#include "gpu/cuda/portable/paged_cache_append/params.hpp"

namespace fovea::gpu::portable::append {

/// A pack as words, or an element alone. Loaded elements stay in words: apart, each would take a register.
template <class T, int kPack>
using Words = std::conditional_t<kPack == 1, T, Pack<std::uint32_t, sizeof(T) * kPack / 4>>;

template <class From, int kPack>
__device__ inline Words<__nv_fp8_storage_t, kPack> quantized(const Words<From, kPack>& row, const Divisor& divisor) {
  if constexpr (kPack == 1) {
    return static_cast<__nv_fp8_storage_t>(e4m3_codes(divisor.divide(to_f32(row)), 0.0f));
  } else {
    const auto two_codes = [&](int i) {
      const float2 values = two_to_f32<From>(&row.element[i * sizeof(From) / 4]);
      return e4m3_codes(divisor.divide(values.x), divisor.divide(values.y));
    };
    Words<__nv_fp8_storage_t, kPack> codes;
#pragma unroll
    for (int i = 0; i < kPack; i += 4) codes.element[i / 4] = two_codes(i) | two_codes(i + 2) << 16;
    return codes;
  }
}

/// The offset of a row that is not stored.
inline constexpr std::int64_t kSkipped = std::numeric_limits<std::int64_t>::min();

/// Offset of a token's row in the cache. The host does not see the slots: a slot outside the cache is skipped, as -1 is.
__device__ inline std::int64_t row_offset(const Params& params, const Side& side, std::int64_t token) {
  const std::int64_t slot = token < params.tokens ? params.slot_mapping[token] : -1;
  if (slot < 0 || slot >= params.slots) return kSkipped;
  const std::int64_t block = slot / params.page, position = slot - block * params.page;
  return block * side.strides.block + position * side.strides.token;
}

/// threadIdx.x chooses a pack of the row, threadIdx.y the tokens. Rows are loaded before their slots are known, and those to skip are too.
template <class From, class To, int kPack>
__global__ void __launch_bounds__(kThreads) append(const __grid_constant__ Params params) {
  __shared__ std::int64_t offsets[kThreads];  // [token of the block]
  const Side& side = params.sides[blockIdx.y];
  if (side.packs == 0) return;  // K alone, or V: the other has no memory
  const int tile = params.blocks_of_row.quotient(blockIdx.x), block_of_row = blockIdx.x - tile * params.blocks_of_row.divisor;
  const int place = block_of_row * blockDim.x + threadIdx.x;
  const int head = side.packs_of_head.quotient(place), pack = place - head * side.packs_of_head.divisor;
  const int tokens_of_block = blockDim.y * kTokens, own = threadIdx.y * kTokens;
  const std::int64_t begin = std::int64_t{tile} * tokens_of_block, tokens_left = params.tokens - begin - own;
  const bool in_row = place < side.packs;

  const From* from = static_cast<const From*>(side.rows) + (begin + own) * side.row_stride + head * side.head_stride + pack * kPack;
  Words<From, kPack> rows[kTokens];
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    if (in_row && i < tokens_left) rows[i] = *reinterpret_cast<const Words<From, kPack>*>(from + i * side.row_stride);
  }
  const float scale = in_row && side.scales != nullptr ? side.scales[head * side.scale_stride] : 1.0f;
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
  if (thread < tokens_of_block) offsets[thread] = row_offset(params, side, begin + thread);
  __syncthreads();
  if (!in_row) return;

  [[maybe_unused]] const Divisor divisor(scale);
  To* to = static_cast<To*>(side.cache) + head * side.strides.head + pack * kPack;
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    const std::int64_t offset = offsets[own + i];
    if (offset == kSkipped) continue;
    auto& target = *reinterpret_cast<Words<To, kPack>*>(to + offset);
    if constexpr (std::is_same_v<From, To>) {
      target = rows[i];
    } else {
      target = quantized<From, kPack>(rows[i], divisor);
    }
  }
}

}  // namespace fovea::gpu::portable::append
