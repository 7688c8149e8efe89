// SPDX-License-Identifier: Apache-2.0
/// New rows of K and V into the slots of a cache. A few threads take a token: they walk over the packs of all its heads.
#pragma once

#include <type_traits>

#include "gpu/common/element.cuh"
#include "gpu/common/quantize.cuh"
#include "gpu/cuda/portable/paged_cache_append/params.hpp"

namespace fovea::gpu::portable::append {

/// A pack's place in the row of a token.
struct Position {
  std::int64_t head, pack;  // pack of the head

  __device__ void advance(const Position& step, std::int64_t packs_of_head) {
    head += step.head;
    pack += step.pack;
    if (pack >= packs_of_head) {
      pack -= packs_of_head;
      ++head;
    }
  }
};

template <class From, int kPack>
__device__ inline Pack<__nv_fp8_storage_t, kPack> quantized(const Pack<From, kPack>& row, float scale) {
  const Divisor divisor(scale);
  const auto quotient = [&](int i) { return i < kPack ? divisor.divide(to_f32(row.element[i])) : 0.0f; };
  Pack<__nv_fp8_storage_t, kPack> codes;
#pragma unroll
  for (int i = 0; i < kPack; i += 2) {
    const std::uint32_t both = e4m3_codes(quotient(i), quotient(i + 1));
    codes.element[i] = static_cast<__nv_fp8_storage_t>(both);
    if (i + 1 < kPack) codes.element[i + 1] = static_cast<__nv_fp8_storage_t>(both >> 8);
  }
  return codes;
}

/// Copies, or quantises where the cache's type is another.
template <class From, class To, int kPack>
__device__ inline void append_row(const Side& side, std::int64_t kv_heads, const From* from, To* to, Position at, const Position& step) {
  for (Position next = at; at.head < kv_heads; at = next) {
    Pack<From, kPack> packs[kBatch];
#pragma unroll
    for (Pack<From, kPack>& pack : packs) {
      if (next.head < kv_heads) pack = load_pack<kPack>(from + next.head * side.head_stride + next.pack * kPack);
      next.advance(step, side.packs_of_head);
    }
#pragma unroll
    for (const Pack<From, kPack>& pack : packs) {
      if (at.head >= kv_heads) break;
      To* target = to + at.head * side.strides.head + at.pack * kPack;
      if constexpr (std::is_same_v<From, To>) {
        store_pack(target, pack);
      } else {
        store_pack(target, quantized(pack, side.scales == nullptr ? 1.0f : side.scales[at.head * side.scale_stride]));
      }
      at.advance(step, side.packs_of_head);
    }
  }
}

/// The host has not seen the slots. Any slot outside the cache is skipped, as -1 is.
template <class From, class To, int kPack>
__global__ void __launch_bounds__(kThreads, kBlocks) append(const __grid_constant__ Params params) {
  const Side& side = params.sides[blockIdx.y];
  if (side.packs_of_head == 0) return;  // K alone, or V: the other has no memory
  const int thread = static_cast<int>(threadIdx.x) % side.threads, tokens_of_block = kThreads / side.threads;
  const Position begin{thread / side.packs_of_head, thread % side.packs_of_head};
  const Position step{side.threads / side.packs_of_head, side.threads % side.packs_of_head};
  const std::int64_t stride = std::int64_t{gridDim.x} * tokens_of_block;
  for (std::int64_t token = std::int64_t{blockIdx.x} * tokens_of_block + threadIdx.x / side.threads; token < params.tokens;
       token += stride) {
    const std::int64_t slot = params.slot_mapping[token];
    if (slot < 0 || slot >= params.slots) continue;
    const std::int64_t block = slot / params.page, position = slot - block * params.page;
    const From* from = static_cast<const From*>(side.rows) + token * side.row_stride;
    To* to = static_cast<To*>(side.cache) + block * side.strides.block + position * side.strides.token;
    append_row<From, To, kPack>(side, params.kv_heads, from, to, begin, step);
  }
}

}  // namespace fovea::gpu::portable::append
