// SPDX-License-Identifier: Apache-2.0
/// Tokens of a warp, shared by its lanes, and addresses of their bytes. A lane takes chunks of 16 bytes of the row, and neighbouring lanes
/// take neighbouring chunks. Each instruction of the warp thus reads or writes one contiguous piece.
#pragma once

#include <cstring>
#include <type_traits>

#include "fovea/cache_format.hpp"
#include "gpu/cuda/common/element.cuh"
#include "gpu/cuda/portable/latent_cache_conversion/params.hpp"

namespace fovea::gpu::portable::conversion {

inline constexpr unsigned kAllLanes = 0xffffffffu;

using Chunk = Pack<std::uint32_t, kChunkBytes / 4>;  ///< of a row, as raw bits

template <CacheFormat kFormat, class T>
struct Shape {
  static constexpr PackedFormat kPacked = *packed_format(kFormat);
  static constexpr bool kE4m3 = kPacked.code_type == CodeType::e4m3;
  static constexpr int kValues = kChunkBytes / static_cast<int>(sizeof(T));
  static constexpr int kTokens = tokens_of_warp(sizeof(T)), kLanes = 32 / kTokens;  ///< tokens of a warp, and lanes of a token
  static constexpr int kCodeChunks = kPacked.codes / kValues, kRopeChunks = kPacked.rope / kValues;
  static constexpr int kPasses = (kCodeChunks + kLanes - 1) / kLanes;
  static constexpr int kGroupLanes = kPacked.group / kValues;  ///< lanes whose chunks share a scale
  static constexpr int kScaleBytes = kPacked.scale_type == ScaleType::f32 ? 4 : 1;
  static constexpr int kPaddingBytes = kPacked.scale_bytes - kPacked.groups() * kScaleBytes;
  static constexpr int kCodeBytes = kE4m3 ? kValues : kValues / 2;  ///< of a chunk
  using Codes = std::conditional_t<kCodeBytes == 8, std::uint64_t, std::conditional_t<kCodeBytes == 4, std::uint32_t, std::uint16_t>>;
  using Rope = Pack<std::uint32_t, kValues / 2>;

  /// Lane `lane` of a token takes the chunks lane, lane + kLanes, ..., and one chunk of the rope.
  static __device__ bool has_codes(int pass, unsigned lane) {
    return (pass + 1) * kLanes <= kCodeChunks || lane < static_cast<unsigned>(kCodeChunks - pass * kLanes);
  }
  static __device__ bool has_rope(unsigned lane) { return kRopeChunks > 0 && lane < kRopeChunks; }

  /// Bytes from a lane's data of one pass to its data of the next.
  static constexpr int kRowStep = kLanes * kChunkBytes, kCodeStep = kLanes * kCodeBytes;
  static constexpr int kScaleStep = kLanes / kGroupLanes * kScaleBytes;
  static_assert(kRopeChunks <= kLanes && kGroupLanes >= 1 && kLanes % kGroupLanes == 0 && kPacked.groups() <= kPacked.scale_bytes);
};

/// Loads and stores in aligned units: whole if everything is aligned, else elements of the row and single bytes of the cache.
template <class Whole, class Unit>
__device__ inline Whole load_by(const std::byte* from) {
  Unit units[sizeof(Whole) / sizeof(Unit)];
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(Whole) / sizeof(Unit)); ++i) units[i] = reinterpret_cast<const Unit*>(from)[i];
  Whole whole;
  std::memcpy(&whole, units, sizeof whole);
  return whole;
}

template <class Unit, class Whole>
__device__ inline void store_by(std::byte* to, const Whole& whole) {
  Unit units[sizeof(Whole) / sizeof(Unit)];
  std::memcpy(units, &whole, sizeof whole);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(Whole) / sizeof(Unit)); ++i) reinterpret_cast<Unit*>(to)[i] = units[i];
}

/// The raw integer of the size of T.
template <class T>
using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>;

template <bool kAligned, class T>
using RowUnit = std::conditional_t<kAligned, Chunk, Bits<T>>;
template <bool kAligned, class Whole>
using CacheUnit = std::conditional_t<kAligned, Whole, std::uint8_t>;

/// Addresses of a lane's first quantised values, their scale, and its part of the rope.
template <class Byte>
struct Token {
  Byte *codes, *scales, *rope;
};

template <class S, class Rows, class Byte>
__device__ inline Token<Byte> token_at(const Params<Rows, Byte*>& params, std::int64_t slot, unsigned lane) {
  const std::int64_t block = slot / params.page;
  const std::int64_t offset = slot - block * params.page;
  Byte* begin = params.cache + block * params.block_stride;
  Byte* codes = begin + offset * params.layout.record;
  Byte* scales = begin + params.layout.scales_begin + offset * params.layout.scales_record;
  return {codes + lane * S::kCodeBytes, scales + lane / S::kGroupLanes * S::kScaleBytes,
          codes + params.layout.rope_begin + lane * sizeof(typename S::Rope)};
}

/// Runs over the tokens of each warp of the grid. All lanes of a warp take the same number of steps.
template <class S, class P, class Convert>
__device__ inline void for_each_token(const P& params, const Convert& convert) {
  const unsigned thread = threadIdx.x, lane = thread % S::kLanes;
  const std::int64_t step = std::int64_t{gridDim.x} * (kThreads / S::kLanes);
  std::int64_t token = std::int64_t{blockIdx.x} * (kThreads / S::kLanes) + thread / S::kLanes;
  const auto slot_of = [&](std::int64_t at) { return at < params.tokens ? params.slot_mapping[at] : -1; };
  std::int64_t next = slot_of(token);
  for (std::int64_t first = token - thread % 32 / S::kLanes; first < params.tokens; first += step) {
    const std::int64_t slot = next;
    next = slot_of(token + step);  // the load is in flight during convert()
    convert(token, slot, lane);
    token += step;
  }
}

/// The host has not seen the slots. Any slot outside the cache is skipped, as -1 is.
template <class P>
__device__ inline bool has_slot(const P& params, std::int64_t slot) {
  return slot >= 0 && slot < params.slots;
}

}  // namespace fovea::gpu::portable::conversion
