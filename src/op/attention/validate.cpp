// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>

#include "op/attention/fields.hpp"
#include "op/attention/problem.hpp"
#include "op/common/attention_core.hpp"
#include "op/common/checks.hpp"
#include "op/common/packed_mask.hpp"

namespace fovea::detail {
namespace {

using Axes = std::array<std::string_view, 4>;
constexpr Axes kQAxes{"batch", "seq_q", "head", "head_dim_qk"};
constexpr Axes kKAxes{"batch", "seq_k", "kv_head", "head_dim_qk"};
constexpr Axes kVAxes{"batch", "seq_k", "kv_head", "head_dim_v"};
constexpr Axes kOutAxes{"batch", "seq_q", "head", "head_dim_v"};
constexpr Axes kRaggedQAxes{"", "total_q", "head", "head_dim_qk"};
constexpr Axes kRaggedKAxes{"", "total_k", "kv_head", "head_dim_qk"};
constexpr Axes kRaggedVAxes{"", "total_k", "kv_head", "head_dim_v"};
constexpr Axes kRaggedOutAxes{"", "total_q", "head", "head_dim_v"};

constexpr std::array kInputDTypes{DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::f64};

/// A tensor [batch, row, head, dim], or [row, head, dim] when ragged, read through one set of indices.
struct RowTensor {
  NamedTensor named;
  int first;  ///< axis of the rows: 1, or 0 when ragged

  std::int64_t rows() const { return at(0); }
  std::int64_t heads() const { return at(1); }
  std::int64_t dim() const { return at(2); }
  std::int64_t at(int axis) const { return named.desc.shape[static_cast<std::size_t>(first + axis)]; }
  RowStrides strides() const {
    const auto& s = named.desc.strides;
    return first == 1 ? RowStrides{s[0], s[1], s[2]} : RowStrides{0, s[0], s[1]};
  }
};

RowTensor row_tensor(std::string_view name, const TensorDesc& desc, const Axes& fixed, const Axes& ragged, bool is_ragged) {
  const std::span<const std::string_view> axes = is_ragged ? std::span(ragged).subspan(1) : std::span(fixed);
  return {{name, desc, axes, name == "out"}, is_ragged ? 0 : 1};
}

void check_dtypes(Checker& check, const DenseTensors& t) {
  check_dtype(check, t.q, kInputDTypes);
  const std::array same{t.q.desc.dtype};
  check_values(check, t.k, same);
  check_values(check, t.v, same);
  constexpr std::array kFp8Out{DType::bf16, DType::f32};
  if (same[0] == DType::e4m3) {
    check_values(check, t.out, kFp8Out);
  } else {
    check_values(check, t.out, same);
  }
}

void check_shapes(Checker& check, const RowTensor& q, const RowTensor& k, const RowTensor& v, const RowTensor& out) {
  if (q.first == 1) {
    const std::int64_t batch = q.named.desc.shape[0];
    for (const RowTensor* tensor : {&k, &v, &out}) check_extent(check, tensor->named, 0, batch, "q.shape[0]");
  }
  const auto axis = [&](int i) { return q.first + i; };
  check_extent(check, k.named, axis(2), q.dim(), "head_dim_qk of q");
  check_extent(check, v.named, axis(0), k.rows(), "rows of k");
  check_extent(check, v.named, axis(1), k.heads(), "kv_head of k");
  check_extent(check, out.named, axis(0), q.rows(), "rows of q");
  check_extent(check, out.named, axis(1), q.heads(), "head of q");
  check_extent(check, out.named, axis(2), v.dim(), "head_dim_v of v");
}

/// Checks the terms that are added to scores, and dropout.
void check_score_bias(Checker& check, const AttentionDesc& desc, AttentionProblem& p) {
  if (desc.alibi_slopes) {
    constexpr std::array<std::string_view, 2> kAxes{"batch", "head"};
    constexpr std::array kF32{DType::f32};
    const TensorDesc& slopes = *desc.alibi_slopes;
    const bool one_dim = slopes.rank == 1;
    const NamedTensor tensor{"alibi_slopes", slopes, std::span<const std::string_view>(kAxes).subspan(one_dim ? 1 : 0), false, false};
    check_tensor(check, tensor);
    check_dtype(check, tensor, kF32);
    if (check.ok() && !one_dim) check_extent(check, tensor, 0, p.batch, "batch of q");
    check_extent(check, tensor, one_dim ? 0 : 1, p.heads, "head of q");
    p.has_alibi_slopes = true;
    p.alibi_slopes = one_dim ? ScaleDesc{0, slopes.strides[0]} : ScaleDesc{slopes.strides[0], slopes.strides[1]};
  }
  if (desc.bias) {
    check_bias_tensor(check, "bias", *desc.bias, p, false);
    p.has_bias = true;
    p.bias = bias_strides(*desc.bias);
    p.bias_alignment = base_alignment(*desc.bias);
  }
  const double most = std::nextafter(1.0f, 0.0f);
  check.expect(desc.dropout_p >= 0 && desc.dropout_p <= most, "dropout_p", number_text(desc.dropout_p), "0 or more and less than 1");
}

}  // namespace

void check_bias_tensor(Checker& check, std::string_view name, const TensorDesc& desc, const AttentionProblem& p, bool is_output) {
  constexpr std::array<std::string_view, 4> kAxes{"batch", "head", "seq_q", "seq_k"};
  const NamedTensor tensor{name, desc, kAxes, is_output, false};
  check_tensor(check, tensor);
  const std::array same{p.out_dtype};
  check_dtype(check, tensor, same);
  if (!check.ok()) return;
  const std::array want{p.batch, p.heads, p.max_seq_q, p.max_seq_k};
  for (std::size_t axis = 0; axis < want.size(); ++axis) {
    const std::int64_t extent = desc.shape[axis];
    if (extent == 1 || extent == want[axis] || (p.ragged && axis >= 2 && extent > want[axis])) continue;
    const std::string_view or_more = p.ragged && axis >= 2 ? " or more" : "";
    const std::string subject = std::string(name) + ".shape[" + std::to_string(axis) + "] (" + std::string(kAxes[axis]) + ")";
    return check.fail(invalid(subject, extent, "1 or " + std::to_string(want[axis]) + std::string(or_more)));
  }
}

BiasStrides bias_strides(const TensorDesc& desc) {
  const auto stride = [&](std::size_t axis) { return desc.shape[axis] == 1 ? 0 : desc.strides[axis]; };
  return {stride(0), stride(1), stride(2), stride(3)};
}

void check_ragged(Checker& check, const RaggedDesc& ragged) {
  check_bound(check, "ragged.batch", ragged.batch);
  check_bound(check, "ragged.max_seq_q", ragged.max_seq_q);
  check_bound(check, "ragged.max_seq_k", ragged.max_seq_k);
}

Result<AttentionProblem> validate(const AttentionDesc& desc, const PlanOptions& options) {
  return validate_dense(desc, options, check_dtypes);
}

Result<AttentionProblem> validate_dense(const AttentionDesc& desc, const PlanOptions& options, CheckDTypes check_dtypes) {
  const bool ragged = desc.ragged.has_value();
  const RowTensor q = row_tensor("q", desc.q, kQAxes, kRaggedQAxes, ragged);
  const RowTensor k = row_tensor("k", desc.k, kKAxes, kRaggedKAxes, ragged);
  const RowTensor v = row_tensor("v", desc.v, kVAxes, kRaggedVAxes, ragged);
  const RowTensor out = row_tensor("out", desc.out, kOutAxes, kRaggedOutAxes, ragged);

  Checker check;
  for (const RowTensor* tensor : {&q, &k, &v, &out}) check_tensor(check, tensor->named);
  if (check.ok()) check_dtypes(check, {q.named, k.named, v.named, out.named});
  check_shapes(check, q, k, v, out);
  if (ragged) check_ragged(check, *desc.ragged);
  if (!check.ok()) return check.error();

  AttentionProblem problem;
  problem.q_dtype = desc.q.dtype;
  problem.kv_dtype = desc.k.dtype;
  problem.out_dtype = desc.out.dtype;
  problem.ragged = ragged;
  problem.batch = ragged ? desc.ragged->batch : desc.q.shape[0];
  problem.total_q = ragged ? q.rows() : problem.batch * q.rows();
  problem.total_k = ragged ? k.rows() : problem.batch * k.rows();
  problem.max_seq_q = ragged ? std::min(desc.ragged->max_seq_q, q.rows()) : q.rows();
  problem.max_seq_k = ragged ? std::min(desc.ragged->max_seq_k, k.rows()) : k.rows();
  problem.heads = q.heads();
  problem.kv_heads = k.heads();
  problem.head_dim_qk = q.dim();
  problem.head_dim_v = v.dim();
  problem.q = q.strides();
  problem.k = k.strides();
  problem.v = v.strides();
  problem.out = out.strides();
  problem.batch_invariant = options.batch_invariant;
  problem.exact_rows = options.exact_rows;
  copy_options(kAttentionFields, desc, problem);
  set_alignments(problem, desc.q, desc.k, desc.v, desc.out);

  check_scalars(check, desc.scale, problem);
  check_scale(check, "q_scale", desc.q_scale, problem.q_dtype);
  check_scale(check, "k_scale", desc.k_scale, problem.kv_dtype);
  check_scale(check, "v_scale", desc.v_scale, problem.kv_dtype);
  check_lse(check, "lse", desc.lse, problem, ragged);
  check_block_mask(check, desc, problem);
  if (problem.packed_mask) check_packed_mask(check, *problem.packed_mask, problem);
  if (check.ok()) check_score_bias(check, desc, problem);
  if (!check.ok()) return check.error();
  problem.extents = extents_of(kAttentionFields, desc);
  return problem;
}

Result<void> check_args(const AttentionProblem& problem, const AttentionArgs& args) {
  return check_pointers(kAttentionFields, problem, args);
}

Result<void> check_lengths(const AttentionProblem& problem, const AttentionArgs& args) {
  Checker check;
  if (problem.ragged) {
    const auto entries = static_cast<std::size_t>(problem.batch) + 1;
    check_cu_seqlens(check, "cu_seqlens_q", {args.cu_seqlens_q, entries}, problem.total_q, problem.max_seq_q);
    check_cu_seqlens(check, "cu_seqlens_k", {args.cu_seqlens_k, entries}, problem.total_k, problem.max_seq_k);
  }
  for (std::int64_t b = 0; problem.packed_mask && check.ok() && b < problem.batch; ++b) {
    const auto length = [&](const std::int32_t* cu, std::int64_t fixed) {
      return problem.ragged ? cu[b + 1] - std::int64_t{cu[b]} : fixed;
    };
    check_sequence_mask(check, *problem.packed_mask, args.mask_indptr, b, length(args.cu_seqlens_q, problem.max_seq_q),
                        length(args.cu_seqlens_k, problem.max_seq_k));
  }
  if (!check.ok()) return check.error();
  return {};
}

}  // namespace fovea::detail
