// SPDX-License-Identifier: Apache-2.0
/// The indexer of token-sparse attention: it scores every token for every query, and lists the best.
#pragma once

#include <cstdint>
#include <optional>

#include "fovea/plan.hpp"
#include "fovea/tensor.hpp"

namespace fovea {

/// `out[t, j] = k_scale[j] * sum_h weights[t, h] * max(0, dot(q[t, h], k[j]))` for the keys j that row t sees.
///
/// q e4m3 [rows, head, head_dim], head_dim 64 or 128, weights f32 [rows, head], out f32 or bf16 [rows, columns].
/// Flat: k e4m3 [tokens, head_dim], k_scale f32 [tokens], columns = tokens. Row t sees the keys from first[t] to before last[t], i32
/// [rows], cut to [0, tokens]; an absent one is 0, or tokens. A reversed range is empty.
/// Paged, exactly with a block_table i32 [batch, max_blocks]: k [blocks, page, head_dim], k_scale [blocks, page], two views of one
/// cache where it is planar. Every sequence has rows / batch queries, the last of its kv_len i32 [batch] keys: the one at place i of n
/// sees the keys up to kv_len - n + i. Keys past max_blocks * page or columns are left out.
/// A score of a block number outside of the cache is NaN. A NaN of q or k gives NaN; max(0, NaN) is NaN. -inf stands where a row sees no
/// key, unless keep_outside.
struct IndexLogitsDesc {
  TensorDesc q{}, k{}, k_scale{}, weights{};
  std::optional<TensorDesc> block_table{};
  TensorDesc out{};
  bool has_first = false, has_last = false, has_kv_len = false;
  bool keep_outside = false;  ///< leaves what lies outside of the ranges as it was
};

struct IndexLogitsArgs {
  const void* q = nullptr;
  const void* k = nullptr;
  const float* k_scale = nullptr;
  const float* weights = nullptr;
  const std::int32_t* block_table = nullptr;
  void* out = nullptr;
  const std::int32_t* first = nullptr;
  const std::int32_t* last = nullptr;
  const std::int32_t* kv_len = nullptr;
};

using IndexLogitsPlan = Plan<IndexLogitsArgs>;

Result<IndexLogitsPlan> plan_index_logits(const IndexLogitsDesc& desc, Device device = {}, const PlanOptions& options = {});

/// The places of the k largest logits of each row, as a list that sparse attention takes.
///
/// logits f32, f16 or bf16 [rows, columns], out i32 [rows, k]. Row t is its columns from first[t] to before last[t], i32 [rows], cut to
/// [0, columns]; an absent one is 0, or columns. A reversed range is empty. Whatever lies outside never matters.
/// The lower column of equal values comes first, -0 and 0 being equal. NaN comes after -inf. Listed places ascend, or their
/// values descend with `sorted`. Behind the last place of a row with fewer columns follows -1.
/// A place is the column less first[t], plus offset[t]. With a block_table i32 [batch, max_blocks] it is a token of sequence
/// t / (rows / batch) and becomes `block * page + token % page`. -1 stands for a place that is negative, beyond i32 or beyond the table,
/// and where the table has a negative number.
struct TopkRowsDesc {
  TensorDesc logits{}, out{};
  std::optional<TensorDesc> block_table{};
  bool has_first = false, has_last = false, has_offset = false;
  std::int64_t page = 0;  ///< tokens of a block; 0 without a table
  bool sorted = false;
};

struct TopkRowsArgs {
  const void* logits = nullptr;
  std::int32_t* out = nullptr;
  const std::int32_t* block_table = nullptr;
  const std::int32_t* first = nullptr;
  const std::int32_t* last = nullptr;
  const std::int32_t* offset = nullptr;
};

using TopkRowsPlan = Plan<TopkRowsArgs>;

Result<TopkRowsPlan> plan_topk_rows(const TopkRowsDesc& desc, Device device = {}, const PlanOptions& options = {});

}  // namespace fovea
