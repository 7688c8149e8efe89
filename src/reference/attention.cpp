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
  std::vector<std::int64_t> k_at{}, v_at{};              ///< [seq_k]; -1 for keys that no row sees
  std::vector<std::int64_t> k_scale_at{}, v_scale_at{};  ///< likewise, of the scales of rows
  std::optional<MaskedSequence> packed_mask{};
};

/// Where a cache in a format of codes has the scales of its rows.
struct KvScales {
  const KvRowFormat* format = nullptr;  ///< null for plain rows
  const void* scales = nullptr;
  DType dtype = DType::f32;
  std::int64_t head_stride = 0;
};

/// The differences between dense and paged attention.
struct Inputs {
  const void *q, *k, *v;
  std::int64_t k_head_stride, v_head_stride;
  const float* sink;
  const BlockMask* blocks = nullptr;
  const AttentionArgs* dense = nullptr;  ///< null of paged attention, which has neither bias nor dropout
  KvScales k_scales{}, v_scales{};
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

/// Rows at the offsets `at` of codes, with the scales at `scale_at`, as gather() has plain ones.
Matrix gather_codes(const KvScales& side, const void* codes, const std::vector<std::int64_t>& at, const std::vector<std::int64_t>& scale_at,
                    std::int64_t columns) {
  Matrix rows(static_cast<std::int64_t>(at.size()), columns);
  const auto size = static_cast<std::int64_t>(size_of(side.dtype));
  for (std::size_t i = 0; i < at.size(); ++i) {
    if (at[i] < 0) continue;
    const auto* scales = side.scales == nullptr ? nullptr : static_cast<const std::byte*>(side.scales) + scale_at[i] * size;
    const KvRow row{*side.format, static_cast<const std::byte*>(codes) + at[i], scales, side.dtype};
    decode_kv_row(row, {rows.row(static_cast<std::int64_t>(i)), static_cast<std::size_t>(columns)});
  }
  return rows;
}

/// All query heads of one kv head.
void attend_group(const detail::AttentionCore& core, const Inputs& inputs, const Sequence& sequence, std::int64_t kv_head,
                  const Scales& scales, AttentionOutput& result) {
  const auto rows_of = [&](const KvScales& side, const void* data, const std::vector<std::int64_t>& at, std::int64_t head_stride,
                           const std::vector<std::int64_t>& scale_at, std::int64_t columns) {
    const std::vector<std::int64_t> rows = moved(at, kv_head * head_stride);
    if (side.format == nullptr) return gather(core.kv_dtype, data, rows, columns);
    return gather_codes(side, data, rows, moved(scale_at, kv_head * side.head_stride), columns);
  };
  const Matrix k = rows_of(inputs.k_scales, inputs.k, sequence.k_at, inputs.k_head_stride, sequence.k_scale_at, core.head_dim_qk);
  const Matrix v = rows_of(inputs.v_scales, inputs.v, sequence.v_at, inputs.v_head_stride, sequence.v_scale_at, core.head_dim_v);
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
    const auto scale_at = [&](const std::optional<TensorDesc>& scales) {
      return wanted && scales ? block * scales->strides[0] + slot * scales->strides[1] : -1;
    };
    sequence.k_scale_at.push_back(scale_at(problem.k_scale_cache));
    sequence.v_scale_at.push_back(scale_at(problem.v_scale_cache));
  }
  return sequence;
}

KvScales scales_of(KvFormat format, const std::optional<TensorDesc>& desc, const void* scales) {
  const TensorDesc scale_cache = desc.value_or(TensorDesc{});
  return {kv_row_format(format), scales, scale_cache.dtype, scale_cache.strides[2]};
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
  Inputs inputs{args.q, args.k_cache, args.v_cache, problem.k.head, problem.v.head, problem.has_sink ? args.sink : nullptr};
  inputs.k_scales = scales_of(problem.k_format, problem.k_scale_cache, args.k_scale_cache);
  inputs.v_scales = scales_of(problem.v_format, problem.v_scale_cache, args.v_scale_cache);
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
