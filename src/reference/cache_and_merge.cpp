// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "op/common/kv_format.hpp"
#include "reference/element.hpp"
#include "reference/reference.hpp"

namespace fovea::reference {
namespace {

/// One side (K or V) of an append, with its pointers.
struct Side {
  const detail::AppendSide& layout;
  const void* rows;
  void* cache;
  const float* scales;
  void* scale_cache;
};

/// A row into codes and their scales.
void encode_row(const detail::PagedCacheAppendProblem& problem, const Side& side, std::int64_t slot, std::int64_t from, std::int64_t head) {
  const detail::AppendSide& layout = side.layout;
  const TensorDesc scales = layout.scale_cache.value_or(TensorDesc{});
  const std::int64_t block = slot / problem.page, offset = slot % problem.page;
  const std::int64_t codes_at = block * layout.cache.block + offset * layout.cache.token + head * layout.cache.head;
  const std::int64_t scales_at = block * scales.strides[0] + offset * scales.strides[1] + head * scales.strides[2];
  std::vector<float> row(static_cast<std::size_t>(layout.head_dim));
  for (std::size_t d = 0; d < row.size(); ++d)
    row[d] = static_cast<float>(load(problem.dtype, side.rows, from + static_cast<std::int64_t>(d)));
  const detail::KvRowBytes bytes{static_cast<std::byte*>(side.cache) + codes_at,
                                 static_cast<std::byte*>(side.scale_cache) + scales_at * static_cast<std::int64_t>(size_of(scales.dtype)),
                                 scales.dtype};
  const float global = layout.scale ? side.scales[head * layout.scale->head_stride] : 1.0f;
  detail::encode_kv_row(*kv_row_format(layout.format), bytes, global, row);
}

/// Copies one row, or quantises it. The quotient is rounded to f32 first, as the format's definition requires.
void append_row(const detail::PagedCacheAppendProblem& problem, const Side& side, std::int64_t slot, std::int64_t token,
                std::int64_t head) {
  const detail::AppendSide& layout = side.layout;
  const std::int64_t from = token * layout.row_stride + head * layout.head_stride;
  if (layout.format != KvFormat::rows) return encode_row(problem, side, slot, from, head);
  const std::int64_t to = slot / problem.page * layout.cache.block + slot % problem.page * layout.cache.token + head * layout.cache.head;
  const float scale = layout.scale ? side.scales[head * layout.scale->head_stride] : 1.0f;
  for (std::int64_t d = 0; d < layout.head_dim; ++d) {
    const double value = load(problem.dtype, side.rows, from + d);
    store(problem.cache_dtype, side.cache, to + d, layout.scale ? static_cast<double>(static_cast<float>(value) / scale) : value);
  }
}

bool is_empty(double lse) { return std::isnan(lse) || std::isinf(lse); }

}  // namespace

void paged_cache_append(const detail::PagedCacheAppendProblem& problem, const PagedCacheAppendArgs& args) {
  const Side k{problem.k, args.k, args.k_cache, args.k_scale, args.k_scale_cache};
  const Side v{problem.v, args.v, args.v_cache, args.v_scale, args.v_scale_cache};
  for (std::int64_t token = 0; token < problem.tokens; ++token) {
    const std::int64_t slot = args.slot_mapping[token];
    if (slot < 0) continue;
    for (std::int64_t head = 0; head < problem.kv_heads; ++head) {
      append_row(problem, k, slot, token, head);
      append_row(problem, v, slot, token, head);
    }
  }
}

AttentionOutput merge_states(const detail::MergeStatesProblem& problem, const MergeStatesArgs& args) {
  const auto dim = static_cast<std::size_t>(problem.head_dim_v);
  AttentionOutput result = empty_output(problem.total_q, problem.heads, problem.head_dim_v);
  result.written.assign(result.written.size(), 1);
  for (std::int64_t row = 0; row < problem.total_q; ++row) {
    for (std::int64_t head = 0; head < problem.heads; ++head) {
      const auto flat = static_cast<std::size_t>(row * problem.heads + head);
      const auto lse_of = [&](std::size_t part) {
        return static_cast<double>(args.parts[part].lse[row * problem.parts[part].lse_row + head * problem.parts[part].lse_head]);
      };
      double largest = -std::numeric_limits<double>::infinity(), sum = 0;
      for (std::size_t part = 0; part < problem.parts.size(); ++part)
        largest = is_empty(lse_of(part)) ? largest : std::max(largest, lse_of(part));
      for (std::size_t part = 0; part < problem.parts.size(); ++part) sum += is_empty(lse_of(part)) ? 0 : std::exp(lse_of(part) - largest);
      if (sum == 0) continue;
      result.lse[flat] = largest + std::log(sum);
      for (std::size_t part = 0; part < problem.parts.size(); ++part) {
        if (is_empty(lse_of(part))) continue;
        const double weight = std::exp(lse_of(part) - largest) / sum;
        const std::int64_t at = row * problem.parts[part].out_row + head * problem.parts[part].out_head;
        for (std::size_t d = 0; d < dim; ++d)
          result.out[flat * dim + d] += weight * load(problem.dtype, args.parts[part].out, at + static_cast<std::int64_t>(d));
      }
    }
  }
  return result;
}

}  // namespace fovea::reference
