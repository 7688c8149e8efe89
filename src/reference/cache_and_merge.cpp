// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

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
};

/// Copies one row, or quantises it. The quotient is rounded to f32 first, as the format's definition requires.
void append_row(const detail::PagedCacheAppendProblem& problem, const Side& side, std::int64_t slot, std::int64_t token,
                std::int64_t head) {
  const detail::AppendSide& layout = side.layout;
  const std::int64_t from = token * layout.row_stride + head * layout.head_stride;
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
  const Side k{problem.k, args.k, args.k_cache, args.k_scale}, v{problem.v, args.v, args.v_cache, args.v_scale};
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
