// SPDX-License-Identifier: Apache-2.0
/// Parameters of the kernels.
#pragma once

#include "gpu/cuda/portable/paged_attention/params.hpp"

namespace fovea::gpu::portable::paged_attention {
struct WorkTile;
}

namespace fovea::gpu::portable::latent_attention {

/// How a cache stores a token: as elements of q, as e4m3 values, or packed. The planar v41_fp8 only has its scales elsewhere.
enum class RowKind : int { plain, e4m3, v32, v4, v41, fp4 };

/// Bytes of a stored token, as the loader leaves them in shared memory and as they are decoded.
struct RowFormat {
  RowKind kind = RowKind::plain;
  int chunks = 0;       ///< of 16 bytes, contiguous: codes, rope, and the scales of v32
  int codes = 0;        ///< quantised values; the rest of the row is 16-bit
  int scale_words = 0;  ///< of 4 bytes, elsewhere
};

/// The tokens of a cache that each query token lists.
struct TokenList {
  const std::int32_t* indices = nullptr;  ///< [batch][token][topk]: block * page + slot
  const std::int32_t* lengths = nullptr;  ///< [batch], or [token] with length_per_token; null: every list has topk entries
  std::int64_t batch_stride = 0, token_stride = 0;
  int topk = 0;
};

struct RowCache {
  const std::byte* data = nullptr;
  detail::CacheStrides strides{};                 ///< in bytes
  std::int64_t scales_at = 0, scales_stride = 0;  ///< bytes from a block to the scales of its first token, and from token to token
  detail::FastDivmod page{};
  int blocks = 0;
  bool aligned = false;  ///< every row, to 16 bytes
  RowFormat format{};
  TokenList list{};
};

/// Keys are rows of `main`, and values the first columns of keys. Without cu_seqlens_q every sequence has seq_q tokens. With lists every
/// query token is a sequence of the scheduler.
struct Params : paged_attention::Params {
  RowCache main, extra;                           ///< `extra` is listed too
  int coded_row = 0;                              ///< bytes of a row that is decoded in shared memory; 0: all rows are plain
  bool listed = false, length_per_token = false;  ///< whether lists stand in place of the block table
  detail::FastDivmod tokens{};                    ///< of a batch entry, with lists
  const float* cache_scale = nullptr;             ///< one number for e4m3 rows; null: 1
  bool q_chunks = false;                          ///< every row of q is aligned to 16 bytes; q_aligned: to 4
  float* max_logits = nullptr;                    ///< or null
  detail::RowStrides max_logits_strides{};
  paged_attention::WorkTile* unfinished = nullptr;  ///< [split][kv head]: the query tile that the split begins and does not end, or none
  float* partial_largest = nullptr;                 ///< of partial results: the largest score
};

}  // namespace fovea::gpu::portable::latent_attention
