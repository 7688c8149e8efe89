// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "reference/attend.hpp"
#include "reference/block_mask.hpp"
#include "reference/element.hpp"
#include "reference/reference.hpp"
#include "reference/score_terms.hpp"

namespace fovea::reference {
namespace {

/// One sequence of the batch; offsets in elements, of head 0.
struct Sequence {
  std::int64_t index = 0;
  std::int64_t first_row = 0;  ///< in the flat [total_q, ...] output
  std::int64_t seq_q = 0, seq_k = 0;
  std::int64_t q_at = 0;
  std::vector<std::int64_t> k_at{}, v_at{};  ///< [seq_k]; -1 for keys that no row sees
  std::optional<MaskedSequence> packed_mask{};
};

/// The differences between dense and paged attention.
struct Inputs {
  const void *q, *k, *v;
  std::int64_t k_head_stride, v_head_stride;
  const float* sink;
  const BlockMask* blocks = nullptr;
  const AttentionArgs* dense = nullptr;  ///< null of paged attention, which has neither bias nor dropout
};

/// Scales of one (sequence, kv head), 1 without a scale tensor.
struct Scales {
  double q = 1, k = 1, v = 1;
};

double scale_at(const float* scale, const std::optional<ScaleDesc>& desc, std::int64_t batch, std::int64_t kv_head) {
  return desc ? scale[batch * desc->batch_stride + kv_head * desc->head_stride] : 1.0;
}

std::vector<std::int64_t> moved(std::vector<std::int64_t> at, std::int64_t by) {
  for (std::int64_t& offset : at) offset = offset < 0 ? offset : offset + by;
  return at;
}

/// All query heads of one kv head.
void attend_group(const detail::AttentionCore& core, const Inputs& inputs, const Sequence& sequence, std::int64_t kv_head,
                  const Scales& scales, AttentionOutput& result) {
  const Matrix k = gather(core.kv_dtype, inputs.k, moved(sequence.k_at, kv_head * inputs.k_head_stride), core.head_dim_qk);
  const Matrix v = gather(core.kv_dtype, inputs.v, moved(sequence.v_at, kv_head * inputs.v_head_stride), core.head_dim_v);
  RowOptions options{.scale = core.scale * scales.q * scales.k, .softcap = core.softcap, .v_scale = scales.v};
  for (std::int64_t row = 0; row < sequence.seq_q; ++row) {
    std::vector<std::int64_t> in_band = visible_keys(core.mask, row, sequence.seq_q, sequence.seq_k);
    if (sequence.packed_mask) hide_masked(in_band, *sequence.packed_mask, row, sequence.seq_k);
    for (std::int64_t head = kv_head * core.group(); head < (kv_head + 1) * core.group(); ++head) {
      const std::int64_t q_at[] = {sequence.q_at + row * core.q.row + head * core.q.head};
      const Matrix q = gather(core.q_dtype, inputs.q, q_at, core.head_dim_qk);
      if (inputs.sink != nullptr) options.sink = inputs.sink[head];
      const ScoreRow at{sequence.index, head, row, sequence.seq_q, sequence.seq_k};
      if (core.has_score_bias()) options.added = [&](std::int64_t key) { return added_score(core, *inputs.dense, at, key); };
      if (core.dropout_p > 0) options.kept = [&](std::int64_t key) { return kept_share(core, *inputs.dense, at, key); };
      const std::int64_t flat = (sequence.first_row + row) * core.heads + head;
      const auto visible = inputs.blocks == nullptr ? in_band : inputs.blocks->seen(in_band, sequence.index, head, row);
      const RowResult done = attend(q.row(0), k, v, visible, options, &result.out[static_cast<std::size_t>(flat * core.head_dim_v)]);
      result.lse[static_cast<std::size_t>(flat)] = done.lse;
      result.written[static_cast<std::size_t>(sequence.first_row + row)] = 1;
    }
  }
}

std::optional<MaskedSequence> masked_sequence(const detail::AttentionCore& core, const auto& args, std::int64_t b, std::int64_t first_row) {
  if (!core.packed_mask) return std::nullopt;
  MaskedSequence sequence{.mask = *core.packed_mask, .bytes = args.packed_mask};
  if (sequence.mask.row_bytes > 0) {
    sequence.begin = first_row * sequence.mask.row_bytes;
  } else if (args.mask_indptr != nullptr) {
    sequence.begin = args.mask_indptr[b];
  }
  return sequence;
}

Sequence dense_sequence(const detail::AttentionProblem& problem, const AttentionArgs& args, std::int64_t b) {
  Sequence sequence{.index = b, .first_row = b * problem.max_seq_q, .seq_q = problem.max_seq_q, .seq_k = problem.max_seq_k};
  std::int64_t first_key = 0;
  if (problem.ragged) {
    sequence.first_row = args.cu_seqlens_q[b];
    sequence.seq_q = args.cu_seqlens_q[b + 1] - args.cu_seqlens_q[b];
    first_key = args.cu_seqlens_k[b];
    sequence.seq_k = args.cu_seqlens_k[b + 1] - args.cu_seqlens_k[b];
  }
  sequence.q_at = problem.ragged ? sequence.first_row * problem.q.row : b * problem.q.batch;
  sequence.packed_mask = masked_sequence(problem, args, b, sequence.first_row);
  const std::vector<char> seen = keys_seen(problem.mask, sequence.seq_q, sequence.seq_k);
  for (std::int64_t key = 0; key < sequence.seq_k; ++key) {
    const bool wanted = seen[static_cast<std::size_t>(key)] != 0;
    sequence.k_at.push_back(wanted ? b * problem.k.batch + (first_key + key) * problem.k.row : -1);
    sequence.v_at.push_back(wanted ? b * problem.v.batch + (first_key + key) * problem.v.row : -1);
  }
  return sequence;
}

Sequence paged_sequence(const detail::PagedAttentionProblem& problem, const PagedAttentionArgs& args, std::int64_t b) {
  Sequence sequence{.index = b,
                    .first_row = args.cu_seqlens_q[b],
                    .seq_q = args.cu_seqlens_q[b + 1] - args.cu_seqlens_q[b],
                    .seq_k = args.kv_len[b],
                    .q_at = args.cu_seqlens_q[b] * problem.q.row};
  sequence.packed_mask = masked_sequence(problem, args, b, sequence.first_row);
  const std::vector<char> seen = keys_seen(problem.mask, sequence.seq_q, sequence.seq_k);
  for (std::int64_t key = 0; key < sequence.seq_k; ++key) {
    const bool wanted = seen[static_cast<std::size_t>(key)] != 0;
    const std::int64_t block = wanted ? args.block_table[b * problem.table_stride + key / problem.page] : 0;
    const std::int64_t slot = key % problem.page;
    sequence.k_at.push_back(wanted ? block * problem.k.block + slot * problem.k.token : -1);
    sequence.v_at.push_back(wanted ? block * problem.v.block + slot * problem.v.token : -1);
  }
  return sequence;
}

}  // namespace

AttentionOutput empty_output(std::int64_t total_q, std::int64_t heads, std::int64_t head_dim_v) {
  const auto rows = static_cast<std::size_t>(total_q * heads);
  return {std::vector<double>(rows * static_cast<std::size_t>(head_dim_v)),
          std::vector<double>(rows, -std::numeric_limits<double>::infinity()), std::vector<char>(static_cast<std::size_t>(total_q))};
}

AttentionOutput attention(const detail::AttentionProblem& problem, const AttentionArgs& args) {
  AttentionOutput result = empty_output(problem.total_q, problem.heads, problem.head_dim_v);
  const BlockMask blocks(problem, args);
  const Inputs inputs{args.q, args.k, args.v, problem.k.head, problem.v.head, problem.has_sink ? args.sink : nullptr, &blocks, &args};
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const Sequence sequence = dense_sequence(problem, args, b);
    for (std::int64_t kv_head = 0; kv_head < problem.kv_heads; ++kv_head) {
      const Scales scales{scale_at(args.q_scale, problem.q_scale, b, kv_head), scale_at(args.k_scale, problem.k_scale, b, kv_head),
                          scale_at(args.v_scale, problem.v_scale, b, kv_head)};
      attend_group(problem, inputs, sequence, kv_head, scales, result);
    }
  }
  return result;
}

AttentionOutput paged_attention(const detail::PagedAttentionProblem& problem, const PagedAttentionArgs& args) {
  AttentionOutput result = empty_output(problem.total_q, problem.heads, problem.head_dim_v);
  const Inputs inputs{args.q, args.k_cache, args.v_cache, problem.k.head, problem.v.head, problem.has_sink ? args.sink : nullptr};
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const Sequence sequence = paged_sequence(problem, args, b);
    for (std::int64_t kv_head = 0; kv_head < problem.kv_heads; ++kv_head) {
      const Scales scales{1, scale_at(args.k_scale, problem.k_scale, 0, kv_head), scale_at(args.v_scale, problem.v_scale, 0, kv_head)};
      attend_group(problem, inputs, sequence, kv_head, scales, result);
    }
  }
  return result;
}

}  // namespace fovea::reference
