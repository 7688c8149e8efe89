// SPDX-License-Identifier: Apache-2.0
/// MLA, dense and token-sparse. Every token is decoded on its own; then the one formula of attend.hpp applies.
#include <algorithm>
#include <numeric>

#include "reference/attend.hpp"
#include "reference/element.hpp"
#include "reference/reference.hpp"

namespace fovea::reference {
namespace {

/// The K row of one slot. The format requires that packed values are rounded once to bf16, for the matrix units.
void load_row(const detail::LatentCacheView& cache, const void* data, std::int64_t slot, std::int64_t kv_head, double* row) {
  const std::int64_t block = slot / cache.page, offset = slot % cache.page;
  const PackedFormat* packed = packed_format(cache.format);
  if (packed == nullptr) {
    const std::int64_t at = block * cache.strides.block + offset * cache.strides.token + kv_head * cache.strides.head;
    for (std::int64_t d = 0; d < cache.row; ++d) row[d] = load(cache.dtype, data, at + d);
    return;
  }
  decode_row(*packed, static_cast<const std::uint8_t*>(data) + block * cache.block_stride, offset, cache.page, row);
  for (std::int64_t d = 0; d < cache.row; ++d) {
    std::uint16_t bits = 0;
    store(DType::bf16, &bits, 0, static_cast<double>(static_cast<float>(row[d])));
    row[d] = load(DType::bf16, &bits, 0);
  }
}

/// V: the first 512 values of each row.
Matrix latent_part(const Matrix& k, std::int64_t rows) {
  Matrix v(rows, detail::kLatentDim);
  for (std::int64_t i = 0; i < rows; ++i) std::copy_n(k.row(i), detail::kLatentDim, v.row(i));
  return v;
}

Matrix query(const detail::AttentionCore& core, const void* q, std::int64_t at) {
  const std::int64_t offsets[] = {at};
  return gather(core.q_dtype, q, offsets, core.head_dim_qk);
}

/// The slots of the tokens that one row lists. Indices that name no token are left out.
void append_rows(const SparseLatentAttentionArgs::Selection& args, const detail::SparseSelection& selection, std::int64_t index_at,
                 std::int64_t length, std::vector<std::vector<double>>& rows) {
  for (std::int64_t i = 0; i < std::min(length, selection.topk); ++i) {
    const std::int64_t slot = args.indices[index_at + i];
    if (slot < 0 || slot >= selection.cache.slots()) continue;
    rows.emplace_back(static_cast<std::size_t>(selection.cache.row));
    load_row(selection.cache, args.cache, slot, 0, rows.back().data());
  }
}

/// K of one query row: the rows of its tokens from both caches.
Matrix selected_rows(const detail::SparseLatentAttentionProblem& problem, const SparseLatentAttentionArgs& args, std::int64_t b,
                     std::int64_t row) {
  std::vector<std::vector<double>> rows;
  const auto append = [&](const detail::SparseSelection& selection, const SparseLatentAttentionArgs::Selection& from) {
    const std::int64_t length = selection.has_topk_length ? from.topk_length[problem.flat ? row : b] : selection.topk;
    append_rows(from, selection, b * selection.batch_stride + row * selection.row_stride, length, rows);
  };
  append(problem.main, args.main);
  if (problem.extra) append(*problem.extra, args.extra);
  Matrix k(static_cast<std::int64_t>(rows.size()), problem.head_dim_qk);
  for (std::size_t i = 0; i < rows.size(); ++i) std::copy(rows[i].begin(), rows[i].end(), k.row(static_cast<std::int64_t>(i)));
  return k;
}

std::vector<std::int64_t> all_rows(std::int64_t count) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(count));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

}  // namespace

AttentionOutput latent_attention(const detail::LatentAttentionProblem& problem, const LatentAttentionArgs& args) {
  AttentionOutput result = empty_output(problem.total_q, problem.heads, problem.head_dim_v);
  const double cache_scale = problem.has_scale ? args.cache_scale[0] : 1.0;
  const RowOptions options{.scale = problem.scale * cache_scale, .v_scale = cache_scale};
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const std::int64_t first_row = problem.ragged ? args.cu_seqlens_q[b] : b * problem.max_seq_q;
    const std::int64_t seq_q = problem.ragged ? args.cu_seqlens_q[b + 1] - args.cu_seqlens_q[b] : problem.max_seq_q;
    const std::int64_t seq_k = args.kv_len[b];
    const std::vector<char> seen = keys_seen(problem.mask, seq_q, seq_k);
    for (std::int64_t kv_head = 0; kv_head < problem.kv_heads; ++kv_head) {
      Matrix k(seq_k, problem.head_dim_qk);
      for (std::int64_t key = 0; key < seq_k; ++key) {
        if (seen[static_cast<std::size_t>(key)] == 0) continue;
        const std::int64_t block = args.block_table[b * problem.table_stride + key / problem.cache.page];
        load_row(problem.cache, args.cache, block * problem.cache.page + key % problem.cache.page, kv_head, k.row(key));
      }
      const Matrix v = latent_part(k, seq_k);
      for (std::int64_t row = 0; row < seq_q; ++row) {
        const std::vector<std::int64_t> visible = visible_keys(problem.mask, row, seq_q, seq_k);
        const std::int64_t q_at = problem.ragged ? (first_row + row) * problem.q.row : b * problem.q.batch + row * problem.q.row;
        for (std::int64_t head = kv_head * problem.group(); head < (kv_head + 1) * problem.group(); ++head) {
          const std::int64_t flat = (first_row + row) * problem.heads + head;
          const Matrix q = query(problem, args.q, q_at + head * problem.q.head);
          const RowResult done = attend(q.row(0), k, v, visible, options, &result.out[static_cast<std::size_t>(flat * problem.head_dim_v)]);
          result.lse[static_cast<std::size_t>(flat)] = done.lse;
        }
        result.written[static_cast<std::size_t>(first_row + row)] = 1;
      }
    }
  }
  return result;
}

AttentionOutput sparse_latent_attention(const detail::SparseLatentAttentionProblem& problem, const SparseLatentAttentionArgs& args) {
  AttentionOutput result = empty_output(problem.total_q, problem.heads, problem.head_dim_v);
  result.max_logits = result.lse;
  RowOptions options{.scale = problem.scale};
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    for (std::int64_t row = 0; row < problem.max_seq_q; ++row) {
      const Matrix k = selected_rows(problem, args, b, row);
      const auto tokens = static_cast<std::int64_t>(k.values.size()) / problem.head_dim_qk;
      const Matrix v = latent_part(k, tokens);
      const std::vector<std::int64_t> visible = all_rows(tokens);
      for (std::int64_t head = 0; head < problem.heads; ++head) {
        if (problem.has_sink) options.sink = args.sink[head];
        const auto flat = static_cast<std::size_t>((b * problem.max_seq_q + row) * problem.heads + head);
        const Matrix q = query(problem, args.q, b * problem.q.batch + row * problem.q.row + head * problem.q.head);
        const RowResult done = attend(q.row(0), k, v, visible, options, &result.out[flat * detail::kLatentDim]);
        result.lse[flat] = done.lse;
        result.max_logits[flat] = done.largest;
      }
      result.written[static_cast<std::size_t>(b * problem.max_seq_q + row)] = 1;
    }
  }
  return result;
}

void quantize_latent_cache(const detail::QuantizeLatentCacheProblem& problem, const QuantizeLatentCacheArgs& args) {
  std::vector<float> row(static_cast<std::size_t>(problem.cache.row));
  for (std::int64_t token = 0; token < problem.tokens; ++token) {
    const std::int64_t slot = args.slot_mapping[token];
    if (slot < 0) continue;
    for (std::size_t d = 0; d < row.size(); ++d) {
      row[d] = static_cast<float>(load(problem.dtype, args.rows, token * problem.row_stride + static_cast<std::int64_t>(d)));
    }
    auto* block = static_cast<std::uint8_t*>(args.cache) + slot / problem.cache.page * problem.cache.block_stride;
    encode_row(*packed_format(problem.cache.format), problem.rule, row, block, slot % problem.cache.page, problem.cache.page);
  }
}

void dequantize_latent_cache(const detail::DequantizeLatentCacheProblem& problem, const DequantizeLatentCacheArgs& args) {
  std::vector<double> row(static_cast<std::size_t>(problem.cache.row));
  for (std::int64_t token = 0; token < problem.tokens; ++token) {
    const std::int64_t slot = args.slot_mapping[token];
    if (slot < 0) continue;
    const auto* block = static_cast<const std::uint8_t*>(args.cache) + slot / problem.cache.page * problem.cache.block_stride;
    decode_row(*packed_format(problem.cache.format), block, slot % problem.cache.page, problem.cache.page, row.data());
    for (std::size_t d = 0; d < row.size(); ++d) {
      const auto value = static_cast<double>(static_cast<float>(row[d]));
      store(problem.dtype, args.rows, token * problem.row_stride + static_cast<std::int64_t>(d), value);
    }
  }
}

}  // namespace fovea::reference
