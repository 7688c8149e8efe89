// SPDX-License-Identifier: Apache-2.0
/// Which tokens a CTA has, and chunks of their rows.
#pragma once

#include <cfloat>

#include "gpu/common/element.cuh"
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

/// A sequence of a ragged batch has the pieces from this one on.
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

/// The piece-th piece of a batch; a count of 0 where a ragged batch has none there.
__device__ inline Tokens piece_of(const Batch& batch, bool is_query, int piece, int piece_tokens) {
  const std::int32_t* cu = is_query ? batch.cu_seqlens_q : batch.cu_seqlens_k;
  int sequence = 0, first = 0;
  if (cu == nullptr) {
    const int pieces = ((is_query ? batch.seq_q : batch.seq_k) + piece_tokens - 1) / piece_tokens;
    sequence = piece / pieces;
    first = sequence * pieces;
  } else {
    int above = batch.sequences;  // sequences [0, above) may have it
    while (above - sequence > 1) {
      const int middle = (sequence + above) / 2;
      (first_piece(cu, middle, piece_tokens) <= piece ? sequence : above) = middle;
    }
    first = first_piece(cu, sequence, piece_tokens);
  }
  Tokens tokens = sequence_of(batch, is_query, sequence);
  tokens.token = (piece - first) * piece_tokens;
  if (tokens.token >= tokens.count) tokens.count = 0;
  return tokens;
}

template <class Element>
__device__ __forceinline__ Pack<Element, kChunk> load_chunk(const Element* from, bool aligned) {
  if (aligned) return load_pack<kChunk>(from);
  Pack<Element, kChunk> chunk;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) chunk.element[i] = from[i];
  return chunk;
}
template <class Element>
__device__ __forceinline__ void store_chunk(Element* to, const Pack<Element, kChunk>& chunk, bool aligned) {
  if (aligned) return store_pack(to, chunk);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) to[i] = chunk.element[i];
}

template <class Element, class Pointer>
__device__ inline auto* row_of(const Rows<Pointer>& rows, const Tokens& tokens, int token, int head) {
  using To = std::conditional_t<std::is_same_v<Pointer, void*>, Element, const Element>;
  return static_cast<To*>(rows.data) + tokens.at(rows.strides, token, head);
}

inline constexpr float kSmallest = 1e-7f;  // magnitude of a group, so that zeros stay zeros

__device__ inline bool is_finite(float x) { return fabsf(x) <= FLT_MAX; }

}  // namespace fovea::gpu::portable::quantizers
