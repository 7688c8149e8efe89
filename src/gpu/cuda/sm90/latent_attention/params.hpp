// SPDX-License-Identifier: Apache-2.0
/// What the launch tells the kernels.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "fovea/mask.hpp"
#include "gpu/cuda/sm90/latent_attention/config.hpp"
#include "op/common/divider.hpp"
#include "op/common/split_schedule.hpp"

namespace fovea::gpu::sm90::latent {

/// A cache. Boxes need its blocks and pages, the rest is for keys one by one.
struct RowCache {
  // Where queries list their tokens:
  const std::int32_t* lengths = nullptr;  // of the lists, or null: topk
  const std::int32_t* indices = nullptr;  // (batch, row, topk): block * page + slot
  std::int64_t indices_batch = 0, indices_row = 0;
  int topk = 0;

  Row row = Row::plain;
  const std::byte* data = nullptr;
  int blocks = 0;
  std::uint32_t tokens = 0;  // at most 2^31
  detail::Divider page{};
  std::uint32_t block_stride = 0, token_stride = 0;  // in Params::unit bytes
  int scales_at = 0, scale_stride = 0;  // bytes from a token to its scales: of the first of a block, and what each next one adds
  std::int64_t head_stride = 0;
};

/// A float for each row of the result, or null.
struct RowValues {
  float* data;
  std::int64_t batch, row, head;
};

struct Job;

/// Mostly in the order in which they are needed.
struct Params {
  // Which requests there are; where queries list their tokens, each token is one.
  int batch = 0, parts = 0, kv_heads = 0, row_tiles = 0;
  detail::EvenSchedule even{};  // where no list has a length of its own: known when planning, and nothing of a schedule lies in memory
  detail::Divider seq_q{};
  bool listed = false;
  bool length_per_row = false;  // lengths are those of query rows, not of the batch
  bool whole = false;           // requests are not split
  bool copy_queries = false;    // eight rows are one box of `queries`; otherwise they are gathered
  Job* first_job = nullptr;     // (parts) in the workspace: what a part begins with

  // Where the tokens are; where the queries list them, `extra` may have more.
  RowCache main, extra;
  std::uint32_t unit = 16;                    // bytes: divides the strides of blocks and tokens of both
  const std::int32_t* block_table = nullptr;  // (batch, table_stride)
  std::int64_t table_stride = 0;

  const void* q = nullptr;
  std::int64_t q_batch = 0, q_row = 0, q_head = 0;
  detail::Divider heads_per_kv{};
  float scale_log2 = 0;  // scale * log2(e)
  BandMask mask{};
  int max_kv_len = 0;
  int overhead = 0;                            // of a request, in pairs of key tiles
  const std::int32_t* kv_len = nullptr;        // (batch)
  const std::int32_t* cu_seqlens_q = nullptr;  // (batch + 1), or null: every request has seq_q rows
  float* max_logits = nullptr;                 // or null

  // The workspace.
  int* prefix = nullptr;          // (batch + 1) costs, then the length of a part and what a request costs beside its pairs
  uint2* partial = nullptr;       // (2 * parts, kv_heads, row_tiles, math warps, kPartialPieces, kPieceWords, 32), normalised
  float* partial_rows = nullptr;  // (2 * parts, kv_heads, row_tiles, math warps, kPartialRowStats, 16)
  int* told = nullptr;            // (parts, kv_heads, row_tiles, math warps): 1 while a partial result waits to be collected

  void* out = nullptr;
  float* lse = nullptr;  // or null
  std::int64_t out_batch = 0, out_row = 0, out_head = 0;
  std::int64_t lse_batch = 0, lse_row = 0, lse_head = 0;
  std::int64_t max_batch = 0, max_row = 0, max_head = 0;
  const float* cache_scale = nullptr;  // of e4m3 rows; null: 1
  const float* sink = nullptr;         // (heads), or null
  std::uint32_t zero = 0;              // which no compiler knows: SharedCodeLoader makes order with it

  CUtensorMap left, right;   // boxes of 8 keys: columns [0, 256) and the rest
  CUtensorMap queries;       // boxes of 8 heads of one query token
  CUtensorMap results;       // likewise of out, of half of the columns
  bool store_boxes = false;  // whether there are any

  __device__ RowValues lse_rows() const { return {lse, lse_batch, lse_row, lse_head}; }
  __device__ RowValues largest_rows() const { return {max_logits, max_batch, max_row, max_head}; }
};

}  // namespace fovea::gpu::sm90::latent
