// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "op/attention/problem.hpp"
#include "op/common/attention_core.hpp"
#include "op/quantized_attention/fields.hpp"
#include "op/quantized_attention/problem.hpp"

namespace fovea::detail {
namespace {

using Axes = std::array<std::string_view, 4>;
constexpr Axes kQAxes{"batch", "seq_q", "head", "head_dim"}, kRaggedQAxes{"", "total_q", "head", "head_dim"};
constexpr Axes kKAxes{"batch", "seq_k", "kv_head", "head_dim"}, kRaggedKAxes{"", "total_k", "kv_head", "head_dim"};
constexpr std::array kSourceDTypes{DType::f32, DType::f16, DType::bf16};
constexpr std::array kInt8{DType::i8};
constexpr std::array kF32{DType::f32};
constexpr std::array kVDTypes{DType::f16, DType::e4m3};

std::span<const std::string_view> axes_of(const Axes& fixed, const Axes& ragged, bool is_ragged) {
  return is_ragged ? std::span(ragged).subspan(1) : std::span(fixed);
}

RowStrides row_strides(const TensorDesc& desc, bool ragged) {
  const auto& s = desc.strides;
  return ragged ? RowStrides{0, s[0], s[1]} : RowStrides{s[0], s[1], s[2]};
}

/// An f32 tensor of the shape of `like`, the dense one.
void check_numbers(Checker& check, const NamedTensor& tensor, const TensorDesc& like) {
  check_tensor(check, tensor);
  check_dtype(check, tensor, kF32);
  for (int axis = 0; axis < like.rank; ++axis) check_extent(check, tensor, axis, like.shape[static_cast<std::size_t>(axis)], {});
}

/// Scales of q or k, [batch, head, group] or [head, group].
RowStrides check_group_scales(Checker& check, std::string_view name, const TensorDesc& desc, const TensorDesc& like, bool is_output) {
  constexpr std::array<std::string_view, 3> kAxes{"batch", "head", "group"};
  const auto axes = like.rank == 2 ? std::span(kAxes).subspan(1) : std::span<const std::string_view>(kAxes);
  check_numbers(check, {name, desc, axes, is_output, false}, like);
  const auto& s = desc.strides;
  return like.rank == 2 ? RowStrides{0, s[1], s[0]} : RowStrides{s[0], s[2], s[1]};
}

/// One number a channel, [batch, kv_head, head_dim].
RowStrides check_channels(Checker& check, std::string_view name, const std::optional<TensorDesc>& desc, const TensorDesc& like,
                          bool is_output) {
  constexpr std::array<std::string_view, 3> kAxes{"batch", "kv_head", "head_dim"};
  if (!desc || !check.ok()) return {};
  check_numbers(check, {name, *desc, kAxes, is_output}, like);
  return {desc->strides[0], 0, desc->strides[1]};
}

void check_groups(Checker& check, const Int8Groups& groups) {
  check.expect(groups.granularity <= Int8Granularity::thread, "groups.granularity", static_cast<int>(groups.granularity),
               "block, warp or thread");
  check.expect(groups.warp_rows == 32 || groups.warp_rows == 16, "groups.warp_rows", groups.warp_rows, "32 or 16");
}

/// A tensor and its quantised twin agree.
void check_pair(Checker& check, const NamedTensor& from, const NamedTensor& to, std::span<const DType> to_dtypes) {
  check_tensor(check, from);
  check_tensor(check, to);
  check_values(check, from, kSourceDTypes);
  check_dtype(check, to, to_dtypes);
  for (int axis = 0; check.ok() && axis < from.desc.rank; ++axis) {
    check_extent(check, to, axis, from.desc.shape[static_cast<std::size_t>(axis)], from.name);
  }
}

QuantizedTensor quantized(const TensorDesc& from, const TensorDesc& to, bool ragged) {
  QuantizedTensor t{.dtype = from.dtype, .to_dtype = to.dtype, .from = row_strides(from, ragged), .to = row_strides(to, ragged)};
  t.heads = from.shape[ragged ? 1 : 2];
  t.head_dim = from.shape[ragged ? 2 : 3];
  t.from_alignment = base_alignment(from);
  t.to_alignment = base_alignment(to);
  return t;
}

/// Lengths of a batch with keys `k`, and queries `q` where the operation has them.
TokenBatch token_batch(const TensorDesc* q, const TensorDesc& k, const std::optional<RaggedDesc>& ragged) {
  TokenBatch b{.ragged = ragged.has_value()};
  const std::size_t rows = b.ragged ? 0 : 1;
  b.batch = b.ragged ? ragged->batch : k.shape[0];
  const auto total = [&](const TensorDesc& t) { return b.ragged ? t.shape[0] : b.batch * t.shape[1]; };
  b.total_k = total(k);
  b.max_seq_k = b.ragged ? std::min(ragged->max_seq_k, k.shape[0]) : k.shape[rows];
  if (q == nullptr) return b;
  b.total_q = total(*q);
  b.max_seq_q = b.ragged ? std::min(ragged->max_seq_q, q->shape[0]) : q->shape[rows];
  return b;
}

void check_int8_dtypes(Checker& check, const DenseTensors& t) {
  check_dtype(check, t.q, kInt8);
  check_dtype(check, t.k, kInt8);
  check_dtype(check, t.v, kVDTypes);
  check_values(check, t.out, kSourceDTypes);
}

void check_source_dtypes(Checker& check, const DenseTensors& t) {
  check_values(check, t.q, kSourceDTypes);
  const std::array same{t.q.desc.dtype};
  for (const NamedTensor* tensor : {&t.k, &t.v, &t.out}) check_values(check, *tensor, same);
}

std::int64_t elements(const TensorDesc& desc) {
  std::int64_t count = 1;
  for (int axis = 0; axis < desc.rank; ++axis) count *= desc.shape[static_cast<std::size_t>(axis)];
  return count;
}

/// A tensor of the workspace, or of memory that the reference allocates.
TensorDesc dense_twin(const TensorDesc& like, DType dtype) {
  const auto& s = like.shape;
  TensorDesc twin = like.rank == 4 ? contiguous(dtype, {s[0], s[1], s[2], s[3]}) : contiguous(dtype, {s[0], s[1], s[2]});
  twin.alignment = 16;
  return twin;
}

/// The descriptions of the steps, with dense tensors between them.
struct Steps {
  QuantizeQkInt8Desc qk{};
  QuantizeVDesc v{};
  QuantizedAttentionDesc attention{};
};

Steps steps_of(const QuantizeAndAttendDesc& desc) {
  const bool e4m3 = desc.v_dtype == DType::e4m3;
  const TensorDesc channels = Int8Groups::channels(desc.k, desc.ragged), v_channels = Int8Groups::channels(desc.v, desc.ragged);
  const auto when = [](bool wanted, const TensorDesc& tensor) { return wanted ? std::optional(tensor) : std::nullopt; };
  QuantizeQkInt8Desc qk{.q = desc.q, .k = desc.k, .ragged = desc.ragged, .groups = desc.groups};
  qk.q_int8 = dense_twin(desc.q, DType::i8);
  qk.k_int8 = dense_twin(desc.k, DType::i8);
  qk.q_scale = desc.groups.q_scale(desc.q, desc.ragged);
  qk.k_scale = desc.groups.k_scale(desc.k, desc.ragged);
  qk.k_mean = when(desc.smooth_k, channels);
  if (desc.smooth_k && desc.lse) {
    const auto& s = desc.lse->shape;
    qk.lse_shift = desc.ragged ? contiguous(DType::f32, {s[0], s[1]}) : contiguous(DType::f32, {s[0], s[1], s[2]});
  }
  QuantizeVDesc v{.v = desc.v, .v_out = dense_twin(desc.v, desc.v_dtype), .ragged = desc.ragged};
  v.v_scale = when(e4m3, v_channels);
  v.v_mean = when(desc.smooth_v, v_channels);
  QuantizedAttentionDesc attention{.q = qk.q_int8,
                                   .k = qk.k_int8,
                                   .v = v.v_out,
                                   .out = desc.out,
                                   .q_scale = qk.q_scale,
                                   .k_scale = qk.k_scale,
                                   .v_scale = v.v_scale,
                                   .v_mean = v.v_mean,
                                   .lse = desc.lse,
                                   .lse_shift = qk.lse_shift,
                                   .ragged = desc.ragged,
                                   .mask = desc.mask,
                                   .scale = desc.scale,
                                   .groups = desc.groups};
  return {qk, v, attention};
}

std::optional<Error> decline_dim(std::string_view subject, std::int64_t dim) {
  if (dim == 64 || dim == 96 || dim == 128 || dim == 256) return std::nullopt;
  return declined(subject, dim, "64, 96, 128 or 256");
}

/// The part of both attentions that dense attention has too.
template <class Desc>
AttentionDesc dense_part(const Desc& desc) {
  return {.q = desc.q,
          .k = desc.k,
          .v = desc.v,
          .out = desc.out,
          .lse = desc.lse,
          .ragged = desc.ragged,
          .mask = desc.mask,
          .scale = desc.scale};
}

}  // namespace

Result<QuantizeQkInt8Problem> validate(const QuantizeQkInt8Desc& desc, const PlanOptions&) {
  const bool ragged = desc.ragged.has_value();
  const auto q_axes = axes_of(kQAxes, kRaggedQAxes, ragged), k_axes = axes_of(kKAxes, kRaggedKAxes, ragged);
  const NamedTensor q{"q", desc.q, q_axes}, k{"k", desc.k, k_axes};
  Checker check;
  check_groups(check, desc.groups);
  check_pair(check, q, {"q_int8", desc.q_int8, q_axes, true}, kInt8);
  check_pair(check, k, {"k_int8", desc.k_int8, k_axes, true}, kInt8);
  if (!check.ok()) return check.error();
  check_dtype(check, k, std::array{desc.q.dtype});
  if (!ragged) check_extent(check, k, 0, desc.q.shape[0], "q.shape[0]");
  check_extent(check, k, ragged ? 2 : 3, desc.q.shape[ragged ? 2 : 3], "head_dim of q");
  if (ragged) check_ragged(check, *desc.ragged);
  if (!check.ok()) return check.error();

  QuantizeQkInt8Problem problem{token_batch(&desc.q, desc.k, desc.ragged), quantized(desc.q, desc.q_int8, ragged),
                                quantized(desc.k, desc.k_int8, ragged)};
  AttentionCore core{.batch = problem.batch, .total_q = problem.total_q, .max_seq_q = problem.max_seq_q, .max_seq_k = problem.max_seq_k};
  core.heads = problem.q.heads;
  core.kv_heads = problem.k.heads;
  core.head_dim_qk = core.head_dim_v = problem.q.head_dim;
  check_scalars(check, 0, core);
  problem.groups = desc.groups;
  problem.q.scale = check_group_scales(check, "q_scale", desc.q_scale, desc.groups.q_scale(desc.q, desc.ragged), true);
  problem.k.scale = check_group_scales(check, "k_scale", desc.k_scale, desc.groups.k_scale(desc.k, desc.ragged), true);
  problem.k.mean = check_channels(check, "k_mean", desc.k_mean, Int8Groups::channels(desc.k, desc.ragged), true);
  problem.k.has_mean = desc.k_mean.has_value();
  check.expect(desc.k_mean || !desc.lse_shift, "lse_shift", "a tensor", "none (without k_mean there is no shift)");
  if (desc.lse_shift && check.ok()) problem.lse_shift = check_row_numbers(check, "lse_shift", *desc.lse_shift, core, ragged);
  problem.has_lse_shift = desc.lse_shift.has_value();
  if (!check.ok()) return check.error();
  problem.extents = extents_of(kQuantizeQkInt8Fields, desc);
  return problem;
}

Result<QuantizeVProblem> validate(const QuantizeVDesc& desc, const PlanOptions&) {
  const bool ragged = desc.ragged.has_value();
  const auto axes = axes_of(kKAxes, kRaggedKAxes, ragged);
  Checker check;
  check_pair(check, {"v", desc.v, axes}, {"v_out", desc.v_out, axes, true}, kVDTypes);
  if (ragged) check_ragged(check, *desc.ragged);
  if (!check.ok()) return check.error();
  QuantizeVProblem problem{token_batch(nullptr, desc.v, desc.ragged), quantized(desc.v, desc.v_out, ragged)};
  const TensorDesc like = Int8Groups::channels(desc.v, desc.ragged);
  const bool scaled = desc.v_out.dtype == DType::e4m3;
  check.expect(desc.v_scale.has_value() == scaled, "v_scale", desc.v_scale ? "a tensor" : "none", "a tensor for e4m3, none for f16");
  problem.v.scale = check_channels(check, "v_scale", desc.v_scale, like, true);
  problem.v.mean = check_channels(check, "v_mean", desc.v_mean, like, true);
  problem.v.has_scale = scaled;
  problem.v.has_mean = desc.v_mean.has_value();
  if (!check.ok()) return check.error();
  problem.extents = extents_of(kQuantizeVFields, desc);
  return problem;
}

Result<QuantizedAttentionProblem> validate(const QuantizedAttentionDesc& desc, const PlanOptions& options) {
  const Result<AttentionProblem> whole = validate_dense(dense_part(desc), options, check_int8_dtypes);
  if (!whole) return whole.error();
  QuantizedAttentionProblem problem{*whole};
  Checker check;
  check_groups(check, desc.groups);
  if (!check.ok()) return check.error();
  problem.v_dtype = desc.v.dtype;
  problem.groups = desc.groups;
  problem.q_scales = check_group_scales(check, "q_scale", desc.q_scale, desc.groups.q_scale(desc.q, desc.ragged), false);
  problem.k_scales = check_group_scales(check, "k_scale", desc.k_scale, desc.groups.k_scale(desc.k, desc.ragged), false);
  const TensorDesc like = Int8Groups::channels(desc.v, desc.ragged);
  problem.has_v_scale = desc.v.dtype == DType::e4m3;
  problem.has_v_mean = desc.v_mean.has_value();
  problem.has_lse_shift = desc.lse_shift.has_value();
  check.expect(desc.v_scale.has_value() == problem.has_v_scale, "v_scale", desc.v_scale ? "a tensor" : "none",
               "a tensor for e4m3, none for f16");
  problem.v_scales = check_channels(check, "v_scale", desc.v_scale, like, false);
  problem.v_means = check_channels(check, "v_mean", desc.v_mean, like, false);
  check.expect(desc.lse || !desc.lse_shift, "lse_shift", "a tensor", "none (without lse nothing is shifted)");
  if (desc.lse_shift && check.ok()) {
    problem.lse_shift = check_row_numbers(check, "lse_shift", *desc.lse_shift, problem, problem.ragged);
  }
  if (!check.ok()) return check.error();
  if (problem.exact_rows) return declined("options.exact_rows", "true", "false (quantised rows share scales)");
  problem.extents = extents_of(kQuantizedAttentionFields, desc);
  return problem;
}

Result<QuantizeAndAttendProblem> validate(const QuantizeAndAttendDesc& desc, const PlanOptions& options) {
  const Result<AttentionProblem> whole = validate_dense(dense_part(desc), options, check_source_dtypes);
  if (!whole) return whole.error();
  Checker check;
  check_groups(check, desc.groups);
  const bool known = desc.v_dtype == DType::f16 || desc.v_dtype == DType::e4m3;
  check.expect(known, "v_dtype", name_of(desc.v_dtype), "f16 or e4m3");
  if (!check.ok()) return check.error();

  const auto [qk, v, attention] = steps_of(desc);
  Result<QuantizeQkInt8Problem> first = validate(qk, options);
  if (!first) return first.error();
  Result<QuantizeVProblem> second = validate(v, options);
  if (!second) return second.error();
  const Result<QuantizedAttentionProblem> third = validate(attention, options);
  if (!third) return third.error();
  first->mask = second->mask = desc.mask;
  second->total_q = first->total_q;
  second->max_seq_q = first->max_seq_q;
  const auto count = [](const std::optional<TensorDesc>& tensor) { return tensor ? elements(*tensor) : 0; };
  QuantizeAndAttendProblem problem{*whole, *first, *second, *third, elements(qk.q_int8), elements(qk.k_int8)};
  problem.q_scale = elements(qk.q_scale);
  problem.k_scale = elements(qk.k_scale);
  problem.k_mean = count(qk.k_mean);
  problem.lse_shift = count(qk.lse_shift);
  problem.v_bytes = elements(v.v_out) * static_cast<std::int64_t>(size_of(desc.v_dtype));
  problem.v_scale = count(v.v_scale);
  problem.v_mean = count(v.v_mean);
  problem.extents = extents_of(kQuantizeAndAttendFields, desc);
  return problem;
}

Result<void> check_args(const QuantizeQkInt8Problem& problem, const QuantizeQkInt8Args& args) {
  return check_pointers(kQuantizeQkInt8Fields, problem, args);
}

Result<void> check_args(const QuantizeVProblem& problem, const QuantizeVArgs& args) {
  return check_pointers(kQuantizeVFields, problem, args);
}

Result<void> check_args(const QuantizedAttentionProblem& problem, const QuantizedAttentionArgs& args) {
  return check_pointers(kQuantizedAttentionFields, problem, args);
}

Result<void> check_args(const QuantizeAndAttendProblem& problem, const QuantizeAndAttendArgs& args) {
  return check_pointers(kQuantizeAndAttendFields, problem, args);
}

Result<void> check_lengths(const QuantizeQkInt8Problem& problem, const QuantizeQkInt8Args& args) {
  if (!problem.ragged) return {};
  Checker check;
  const auto entries = static_cast<std::size_t>(problem.batch) + 1;
  check_cu_seqlens(check, "cu_seqlens_q", {args.cu_seqlens_q, entries}, problem.total_q, problem.max_seq_q);
  check_cu_seqlens(check, "cu_seqlens_k", {args.cu_seqlens_k, entries}, problem.total_k, problem.max_seq_k);
  if (!check.ok()) return check.error();
  return {};
}

Result<void> check_lengths(const QuantizeVProblem& problem, const QuantizeVArgs& args) {
  if (!problem.ragged) return {};
  Checker check;
  const auto entries = static_cast<std::size_t>(problem.batch) + 1;
  check_cu_seqlens(check, "cu_seqlens_k", {args.cu_seqlens_k, entries}, problem.total_k, problem.max_seq_k);
  if (!check.ok()) return check.error();
  return {};
}

/// As dense attention has them.
static AttentionArgs lengths_of(const auto& args) { return {.cu_seqlens_q = args.cu_seqlens_q, .cu_seqlens_k = args.cu_seqlens_k}; }

Result<void> check_lengths(const QuantizedAttentionProblem& problem, const QuantizedAttentionArgs& args) {
  return check_lengths(static_cast<const AttentionProblem&>(problem), lengths_of(args));
}

Result<void> check_lengths(const QuantizeAndAttendProblem& problem, const QuantizeAndAttendArgs& args) {
  return check_lengths(problem.whole, lengths_of(args));
}

std::optional<Error> decline_int8_head_dims(const QuantizeQkInt8Problem& problem) {
  return decline_dim("q.shape (head_dim)", problem.q.head_dim);
}

std::optional<Error> decline_int8_head_dims(const QuantizeVProblem& problem) {
  return decline_dim("v.shape (head_dim)", problem.v.head_dim);
}

std::optional<Error> decline_int8_head_dims(const QuantizedAttentionProblem& problem) {
  if (auto reason = decline_dim("q.shape (head_dim)", problem.head_dim_qk)) return reason;
  return decline_dim("v.shape (head_dim)", problem.head_dim_v);
}

std::optional<Error> decline_int8_head_dims(const QuantizeAndAttendProblem& problem) { return decline_int8_head_dims(problem.attention); }

}  // namespace fovea::detail
