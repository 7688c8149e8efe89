// SPDX-License-Identifier: Apache-2.0
/// The operations of the library, each with its types, name and options. All generic code (planning, lists, info) runs over this table.
#pragma once

#include <string_view>
#include <tuple>

#include "op/attention/fields.hpp"
#include "op/attention/problem.hpp"
#include "op/attention_backward/fields.hpp"
#include "op/index_logits/problem.hpp"
#include "op/latent_attention/fields.hpp"
#include "op/latent_attention/problem.hpp"
#include "op/latent_cache_conversion/problem.hpp"
#include "op/merge_states/problem.hpp"
#include "op/paged_attention/fields.hpp"
#include "op/paged_attention/problem.hpp"
#include "op/paged_cache_append/problem.hpp"
#include "op/quantized_attention/fields.hpp"
#include "op/sparse_latent_attention/problem.hpp"
#include "op/topk_rows/problem.hpp"

namespace fovea::detail {

template <class Problem_, class Args_>
struct OperationTypes {
  using Problem = Problem_;
  using Args = Args_;
};

struct Attention : OperationTypes<AttentionProblem, AttentionArgs> {
  static constexpr std::string_view kName = "attention";
  static constexpr const auto& kOptions = kAttentionOptions;
};
struct AttentionBackward : OperationTypes<AttentionBackwardProblem, AttentionBackwardArgs> {
  static constexpr std::string_view kName = "attention_backward";
  static constexpr const auto& kOptions = kAttentionBackwardOptions;
};
struct PagedAttention : OperationTypes<PagedAttentionProblem, PagedAttentionArgs> {
  static constexpr std::string_view kName = "paged_attention";
  static constexpr const auto& kOptions = kPagedAttentionOptions;
};
struct PagedCacheAppend : OperationTypes<PagedCacheAppendProblem, PagedCacheAppendArgs> {
  static constexpr std::string_view kName = "paged_cache_append";
  static constexpr const auto& kOptions = kPagedCacheAppendOptions;
};
struct MergeStates : OperationTypes<MergeStatesProblem, MergeStatesArgs> {
  static constexpr std::string_view kName = "merge_states";
  static constexpr const auto& kOptions = kMergeStatesOptions;
};
struct LatentAttention : OperationTypes<LatentAttentionProblem, LatentAttentionArgs> {
  static constexpr std::string_view kName = "latent_attention";
  static constexpr const auto& kOptions = kLatentAttentionOptions;
};
struct SparseLatentAttention : OperationTypes<SparseLatentAttentionProblem, SparseLatentAttentionArgs> {
  static constexpr std::string_view kName = "sparse_latent_attention";
  static constexpr const auto& kOptions = kSparseLatentAttentionOptions;
};
struct QuantizeLatentCache : OperationTypes<QuantizeLatentCacheProblem, QuantizeLatentCacheArgs> {
  static constexpr std::string_view kName = "quantize_latent_cache";
  static constexpr const auto& kOptions = kQuantizeLatentCacheOptions;
};
struct DequantizeLatentCache : OperationTypes<DequantizeLatentCacheProblem, DequantizeLatentCacheArgs> {
  static constexpr std::string_view kName = "dequantize_latent_cache";
  static constexpr const auto& kOptions = kDequantizeLatentCacheOptions;
};

struct IndexLogits : OperationTypes<IndexLogitsProblem, IndexLogitsArgs> {
  static constexpr std::string_view kName = "index_logits";
  static constexpr const auto& kOptions = kIndexLogitsOptions;
};
struct TopkRows : OperationTypes<TopkRowsProblem, TopkRowsArgs> {
  static constexpr std::string_view kName = "topk_rows";
  static constexpr const auto& kOptions = kTopkRowsOptions;
};

struct QuantizeQkInt8 : OperationTypes<QuantizeQkInt8Problem, QuantizeQkInt8Args> {
  static constexpr std::string_view kName = "quantize_qk_int8";
  static constexpr const auto& kOptions = kQuantizeQkInt8Options;
};
struct QuantizeV : OperationTypes<QuantizeVProblem, QuantizeVArgs> {
  static constexpr std::string_view kName = "quantize_v";
  static constexpr const auto& kOptions = kQuantizeVOptions;
};
struct QuantizedAttention : OperationTypes<QuantizedAttentionProblem, QuantizedAttentionArgs> {
  static constexpr std::string_view kName = "quantized_attention";
  static constexpr const auto& kOptions = kQuantizedAttentionOptions;
};
struct QuantizeAndAttend : OperationTypes<QuantizeAndAttendProblem, QuantizeAndAttendArgs> {
  static constexpr std::string_view kName = "quantize_and_attend";
  static constexpr const auto& kOptions = kQuantizeAndAttendOptions;
};

/// The order in which operations are listed to people.
using Operations = std::tuple<Attention, AttentionBackward, PagedAttention, PagedCacheAppend, MergeStates, LatentAttention,
                              SparseLatentAttention, QuantizeLatentCache, DequantizeLatentCache, IndexLogits, TopkRows, QuantizeQkInt8,
                              QuantizeV, QuantizedAttention, QuantizeAndAttend>;

}  // namespace fovea::detail
