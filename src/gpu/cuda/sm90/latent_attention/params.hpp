// SPDX-License-Identifier: Apache-2.0
/// Arguments of the kernels, and the functions that launch them.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "fovea/mask.hpp"
#include "gpu/cuda/sm90/latent_attention/config.hpp"
#include "gpu/launch.hpp"
#include "op/common/division.hpp"
#include "op/common/split_schedule.hpp"
#include "op/common/strides.hpp"

namespace fovea::gpu::sm90::latent {

/// A cache. TMA loads need only its blocks and pages; the other members serve gathered rows.
struct RowCache {
  // Lists of tokens:
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
  int scales_at = 0;                                 // bytes from a block's first token to its scales
  int scale_stride = 0;                              // bytes by which that distance grows from slot to slot
  std::int64_t head_stride = 0;                      // bytes
};

struct WorkTile;

/// Members are mostly in the order in which kernels read them.
struct Params {
  // Sequences. With lists of tokens, each query token is one. Each query tile of a kv head has `ctas` CTAs.
  int batch = 0, ctas = 0, kv_heads = 0, query_tiles = 0;
  detail::EvenSchedule even{};  // planned schedule of lists without lengths; otherwise the schedule lies in the workspace
  detail::FastDivmod seq_q{};
  bool listed = false;
  bool length_per_row = false;     // lengths are those of query rows, not of the batch
  bool whole = false;              // whether sequences stay unsplit
  bool tma_queries = false;        // whether `queries` is set; otherwise rows are gathered
  WorkTile* first_work = nullptr;  // [ctas] in the workspace

  // Keys. Lists may name tokens of a second cache, `extra`.
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
  int* prefix = nullptr;          // [batch + 1] costs before each sequence, then SplitLine::length and overhead
  uint2* partial = nullptr;       // [2 * ctas][kv head][query tile][math warp][kPartialPieces][kPieceWords][32], normalised
  float* partial_rows = nullptr;  // [2 * ctas][kv head][query tile][math warp][kPartialRowStats][16]
  int* partial_ready = nullptr;   // [ctas][kv head][query tile][math warp]: 1 while a partial result waits to be reduced

  void* out = nullptr;   // [batch][row][head][512]
  float* lse = nullptr;  // [batch][row][head], or null
  detail::RowStrides out_strides{}, lse_strides{}, max_logits_strides{};
  const float* cache_scale = nullptr;  // one number for e4m3 rows; null: 1
  const float* sink = nullptr;         // [head], or null
  std::uint32_t zero = 0;              // a zero unknown to the compiler, with which QuantisedClusterLoader orders instructions

  CUtensorMap left, right;   // TMA boxes of 8 keys: columns [0, 256) and the rest
  CUtensorMap queries;       // TMA boxes of 8 heads of one query token
  CUtensorMap results;       // TMA boxes of 8 heads of one token of out, half of the columns
  bool tma_results = false;  // whether `results` is set
};

CudaStatus launch_schedule(const Params& params, Stream stream);

using Attend = CudaStatus (*)(const Params& params, int ordinal, Stream stream);

/// The launch of the attention kernel of a row of tuning.hpp, or null where the row has none.
template <class Element, int kRow>
Attend attend_of(int head_dim, bool edges);

/// `blocks`: upper bound of the grid size.
template <class Element>
CudaStatus launch_combine(const Params& params, int blocks, Stream stream);

}  // namespace fovea::gpu::sm90::latent
