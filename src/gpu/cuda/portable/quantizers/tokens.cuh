// SPDX-License-Identifier: Apache-2.0
/// The tokens of a CTA, and chunks of their rows.
#pragma once

#include <cfloat>
#include <cstddef>

#include "gpu/cuda/common/element.cuh"
#include "gpu/cuda/common/target.cuh"
#include "gpu/cuda/portable/quantizers/params.hpp"
#include "op/common/band.hpp"

namespace fovea::gpu::portable::quantizers {

/// Tokens of one sequence from `token` on.
struct Tokens {
  int sequence = 0, batch = 0, first = 0;  // the row of a ragged tensor where the sequence begins
  int count = 0;                           // its length
  int begin = 0, end = 0;                  // tokens that count
  int token = 0;

  __device__ bool counts(int at) const { return at >= begin && at < end; }
  __device__ std::int64_t at(const detail::RowStrides& strides, int of, int head) const {
    return batch * strides.batch + std::int64_t{first + of} * strides.row + head * strides.head;
  }
};

__device__ inline int length_of(const std::int32_t* cu_seqlens, int sequence, int bound) {
  return cu_seqlens == nullptr ? bound : min(max(cu_seqlens[sequence + 1] - cu_seqlens[sequence], 0), bound);
}

/// The first piece of a sequence of a ragged batch.
__device__ inline int first_piece(const std::int32_t* cu_seqlens, int sequence, int tokens) {
  return cu_seqlens[sequence] / tokens + sequence;
}

/// The whole of a sequence.
__device__ inline Tokens sequence_of(const Batch& batch, bool is_query, int sequence) {
  const std::int32_t* cu = is_query ? batch.cu_seqlens_q : batch.cu_seqlens_k;
  Tokens tokens{.sequence = sequence, .batch = cu == nullptr ? sequence : 0, .first = cu == nullptr ? 0 : cu[sequence]};
  tokens.count = tokens.end = length_of(cu, sequence, is_query ? batch.seq_q : batch.seq_k);
  if (is_query || !batch.masked) return tokens;
  const int seq_q = length_of(batch.cu_seqlens_q, sequence, batch.seq_q);
  const detail::KeyRange seen = seq_q > 0
                                    ? detail::keys_seen_by_some(detail::make_band(batch.mask, seq_q, tokens.count), 0, seq_q, tokens.count)
                                    : detail::KeyRange{};
  tokens.begin = static_cast<int>(seen.begin);
  tokens.end = static_cast<int>(seen.end);
  return tokens;
}

/// The sequence of a ragged batch that has a piece.
__device__ inline int sequence_of_piece(const std::int32_t* cu_seqlens, int sequences, int piece, int piece_tokens) {
  int sequence = 0, above = sequences;  // sequences [sequence, above) may have it
  while (above - sequence > 1) {
    const int middle = (sequence + above) / 2;
    (first_piece(cu_seqlens, middle, piece_tokens) <= piece ? sequence : above) = middle;
  }
  return sequence;
}

/// A head's tokens of a work item. One thread stores them to shared memory for the others.
struct Place {
  Item item{};
  Tokens tokens{};
  int head = 0;
  int first = 0;  ///< the sequence's first piece
};

__device__ inline Place place_of(const Params& params, const Item& item) {
  const bool is_query = item.step == Step::quantize_q, looks = item.step == Step::look_at_k || item.step == Step::look_at_v;
  const int piece_tokens = looks ? kSliceTokens : kBlockTokens;
  const int heads = is_query ? params.q.heads : params.kv_heads;
  const std::int32_t* cu = is_query ? params.batch.cu_seqlens_q : params.batch.cu_seqlens_k;
  Place place{.item = item, .head = item.column % heads};
  int sequence = item.column / heads;
  if (cu != nullptr) {
    sequence = sequence_of_piece(cu, params.batch.sequences, item.piece, piece_tokens);
    place.first = first_piece(cu, sequence, piece_tokens);
  }
  Tokens& tokens = place.tokens;
  tokens = sequence_of(params.batch, is_query, sequence);
  tokens.token = (item.piece - place.first) * piece_tokens;
  // The first slice of a sequence without tokens finishes its channels, and its first tile is zeros.
  const bool always = looks || (item.step == Step::quantize_v && params.values_in_tiles);
  if (tokens.token >= tokens.count && !(always && tokens.token == 0)) place.item.step = Step::none;
  return place;
}

__device__ inline __half2 pair_of(__half x) { return __half2half2(x); }
__device__ inline __nv_bfloat162 pair_of(__nv_bfloat16 x) { return __bfloat162bfloat162(x); }
template <class Element>
using PairOf = decltype(pair_of(Element{}));

/// Exact extremes of 16-bit elements, two in a word. Before compute capability 8.0, which has instructions for them, elements
/// are compared as integers of the same order.
template <class Element>
struct PairOrder {
  using Pair = PairOf<Element>;
  static constexpr bool kNative = kTarget >= 80;

  static __device__ __forceinline__ unsigned key(unsigned word) { return kNative ? word : word ^ (word >> 15 & 0x00010001u) * 0x7fffu; }
  static __device__ __forceinline__ unsigned word_of(unsigned key_) { return key(key_); }
  /// Extremes of keys. A NaN wins in at least one of the two.
  static __device__ __forceinline__ unsigned lesser(unsigned a, unsigned b) {
    if constexpr (!kNative)
      return __vmins2(a, b);
    else
      return word(__hmin2_nan(pair(a), pair(b)));
  }
  static __device__ __forceinline__ unsigned greater(unsigned a, unsigned b) {
    if constexpr (!kNative)
      return __vmaxs2(a, b);
    else
      return word(__hmax2_nan(pair(a), pair(b)));
  }

  static __device__ __forceinline__ Pair pair(const unsigned& word) { return reinterpret_cast<const Pair&>(word); }
  static __device__ __forceinline__ unsigned word(const Pair& pair) { return reinterpret_cast<const unsigned&>(pair); }
  static __device__ __forceinline__ float low(unsigned word) {
    // As integers: halves of registers would be registers of their own.
    if constexpr (std::is_same_v<Element, __nv_bfloat16>)
      return __uint_as_float(word << 16);
    else
      return __low2float(pair(word));
  }
  static __device__ __forceinline__ float high(unsigned word) {
    if constexpr (std::is_same_v<Element, __nv_bfloat16>)
      return __uint_as_float(word & 0xffff0000u);
    else
      return __high2float(pair(word));
  }
};

/// Elements of a row, two in a register.
template <class Element>
struct Chunk {
  unsigned word[kChunk / 2] = {};

  __device__ __forceinline__ float operator[](int i) const {
    return i % 2 == 0 ? PairOrder<Element>::low(word[i / 2]) : PairOrder<Element>::high(word[i / 2]);
  }
};

/// `kLast`: the load is the last one of these bytes.
template <class Element, bool kAligned, bool kLast>
__device__ __forceinline__ Chunk<Element> load_chunk(const std::byte* from) {
  if constexpr (kAligned) {
    const auto* whole = reinterpret_cast<const uint4*>(from);
    const uint4 words = kLast ? __ldcs(whole) : *whole;
    return {words.x, words.y, words.z, words.w};
  } else {
    Chunk<Element> chunk;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) chunk.word[i / 2] |= unsigned{reinterpret_cast<const std::uint16_t*>(from)[i]} << i % 2 * 16;
    return chunk;
  }
}

/// Stores a chunk: 1-byte values as two words, 2-byte values as four.
template <bool kAligned, int kWords>
__device__ __forceinline__ void store_words(void* to, const unsigned (&word)[kWords]) {
  if constexpr (kAligned && kWords == 2) {
    __stcs(static_cast<uint2*>(to), make_uint2(word[0], word[1]));
  } else if constexpr (kAligned) {
    __stcs(static_cast<uint4*>(to), make_uint4(word[0], word[1], word[2], word[3]));
  } else if constexpr (kWords == 2) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) static_cast<std::uint8_t*>(to)[i] = static_cast<std::uint8_t>(word[i / 4] >> i % 4 * 8);
  } else {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) static_cast<std::uint16_t*>(to)[i] = static_cast<std::uint16_t>(word[i / 2] >> i % 2 * 16);
  }
}

/// The `row`-th row of a place, of elements of that size.
template <class Pointer>
__device__ inline auto* row_of(const Rows<Pointer>& rows, const Place& place, int row, int element_bytes) {
  using Byte = std::conditional_t<std::is_same_v<Pointer, void*>, std::byte, const std::byte>;
  return static_cast<Byte*>(rows.data) + place.tokens.at(rows.strides, place.tokens.token + row, place.head) * element_bytes;
}

inline constexpr float kSmallest = 1e-7f;  // magnitude of a group, so that zeros stay zeros

__device__ inline bool is_finite(float x) { return fabsf(x) <= FLT_MAX; }

}  // namespace fovea::gpu::portable::quantizers
