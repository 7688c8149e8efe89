// SPDX-License-Identifier: Apache-2.0
/// What a launch passes to the kernels.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "fovea/mask.hpp"
#include "gpu/cuda/sm90/latent_attention/config.hpp"
#include "op/common/attention_core.hpp"
#include "op/common/fast_divmod.hpp"
#include "op/common/split_schedule.hpp"

namespace fovea::gpu::sm90::latent {

/// A cache. Boxes need its blocks and pages; the rest serves gathered rows.
struct RowCache {
  // Where queries list their tokens:
  const std::int32_t* lengths = nullptr;  // [batch], or [rows] with Params::length_per_row; null: every list has topk entries
  const std::int32_t* indices = nullptr;  // [batch][row][topk]: block * page + slot
  std::int64_t indices_batch = 0, indices_row = 0;
  int topk = 0;

  Row row = Row::plain;
  const std::byte* data = nullptr;  // [block][slot][kv head][bytes of a row], or packed blocks
  int blocks = 0;
  std::uint32_t tokens = 0;  // at most 2^31
  detail::FastDivmod page{};
  std::uint32_t block_stride = 0, token_stride = 0;  // in units of Params::unit bytes
  int scales_at = 0, scale_stride = 0;  // bytes from a token to its scales: of a block's first token, and the increment from slot to slot
  std::int64_t head_stride = 0;         // bytes
};

struct WorkTile;

/// Mostly in the order in which kernels read them.
struct Params {
  // The sequences. Where queries list their tokens, each query token is one.
  int batch = 0, parts = 0, kv_heads = 0, row_tiles = 0;
  detail::EvenSchedule even{};  // where no list has a length of its own: known when planning, so no schedule lies in memory
  detail::FastDivmod seq_q{};
  bool listed = false;
  bool length_per_row = false;     // lengths are those of query rows, not of the batch
  bool whole = false;              // sequences are not split
  bool tma_queries = false;        // eight rows are one box of `queries`; otherwise they are gathered
  WorkTile* first_work = nullptr;  // [parts] in the workspace: the first work tile of each part

  // The keys. Where queries list their tokens, `extra` may hold more of them.
  RowCache main, extra;
  std::uint32_t unit = 16;                    // bytes: divides the strides of blocks and tokens of both caches
  const std::int32_t* block_table = nullptr;  // [batch][table_stride]
  std::int64_t table_stride = 0;

  const void* q = nullptr;  // [batch][row][head][head dim]
  detail::RowStrides q_strides{};
  detail::FastDivmod heads_per_kv{};
  float scale_log2 = 0;  // scale * log2(e)
  BandMask mask{};
  int max_kv_len = 0;
  int overhead = 0;                            // of a sequence, in pairs of key tiles
  const std::int32_t* kv_len = nullptr;        // [batch]
  const std::int32_t* cu_seqlens_q = nullptr;  // [batch + 1]; null: every sequence has seq_q rows
  float* max_logits = nullptr;                 // [batch][row][head], or null

  // The workspace.
  int* prefix = nullptr;          // [batch + 1] costs, then the length of a part, then the overhead of a sequence in use
  uint2* partial = nullptr;       // [2 * parts][kv head][row tile][math warp][kPartialPieces][kPieceWords][32], normalised
  float* partial_rows = nullptr;  // [2 * parts][kv head][row tile][math warp][kPartialRowStats][16]
  int* partial_ready = nullptr;   // [parts][kv head][row tile][math warp]: 1 while a partial result waits to be reduced

  void* out = nullptr;   // [batch][row][head][512]
  float* lse = nullptr;  // [batch][row][head], or null
  detail::RowStrides out_strides{}, lse_strides{}, max_logits_strides{};
  const float* cache_scale = nullptr;  // one number, of e4m3 rows; null: 1
  const float* sink = nullptr;         // [head], or null
  std::uint32_t zero = 0;              // unknown to the compiler: SharedCodeLoader orders instructions with it

  CUtensorMap left, right;   // boxes of 8 keys: columns [0, 256) and the rest
  CUtensorMap queries;       // boxes of 8 heads of one query token
  CUtensorMap results;       // likewise of out, of half of the columns
  bool tma_results = false;  // whether `results` is set
};

}  // namespace fovea::gpu::sm90::latent
