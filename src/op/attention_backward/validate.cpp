// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "op/attention/fields.hpp"
#include "op/attention/problem.hpp"
#include "op/attention_backward/fields.hpp"
#include "op/attention_backward/problem.hpp"
#include "op/common/attention_core.hpp"

namespace fovea::detail {
namespace {

constexpr std::array<std::string_view, 4> kAxes{"batch", "seq", "head", "head_dim"};

/// A gradient has the shape and dtype of its counterpart and strides of its own.
RowStrides check_gradient(Checker& check, std::string_view name, const TensorDesc& gradient, const TensorDesc& of, bool is_output) {
  const std::span<const std::string_view> axes = std::span(kAxes).subspan(of.rank == 3 ? 1 : 0);
  const NamedTensor tensor{name, gradient, axes, is_output};
  check_tensor(check, tensor);
  const std::array same{of.dtype};
  check_dtype(check, tensor, same);
  if (!check.ok()) return {};
  for (int axis = 0; axis < of.rank; ++axis)
    check_extent(check, tensor, axis, of.shape[static_cast<std::size_t>(axis)], "the forward tensor");
  const auto& s = gradient.strides;
  return of.rank == 4 ? RowStrides{s[0], s[1], s[2]} : RowStrides{0, s[0], s[1]};
}

void check_dbias(Checker& check, const AttentionBackwardDesc& desc, AttentionBackwardProblem& problem) {
  const TensorDesc& dbias = *desc.dbias;
  check.expect(desc.forward.bias.has_value(), "dbias", "a tensor", "none, as there is no bias");
  if (!check.ok()) return;
  check_bias_tensor(check, "dbias", dbias, problem, true);
  constexpr std::array<std::string_view, 4> kBiasAxes{"batch", "head", "seq_q", "seq_k"};
  const NamedTensor tensor{"dbias", dbias, kBiasAxes, true, false};
  for (int axis = 0; check.ok() && axis < 4; ++axis)
    check_extent(check, tensor, axis, desc.forward.bias->shape[static_cast<std::size_t>(axis)], "the bias");
  if (!check.ok()) return;
  problem.has_dbias = true;
  problem.dbias = bias_strides(dbias);
  problem.dbias_extents = {dbias.shape[0], dbias.shape[1], dbias.shape[2], dbias.shape[3]};
  problem.dbias_elements = dbias.shape[0] * dbias.shape[1] * dbias.shape[2] * dbias.shape[3];
  problem.dbias_alignment = base_alignment(dbias);
}

}  // namespace

Result<AttentionBackwardProblem> validate(const AttentionBackwardDesc& desc, const PlanOptions& options) {
  const Result<AttentionProblem> forward = validate(desc.forward, options);
  if (!forward) return forward.error();
  AttentionBackwardProblem problem{*forward};
  problem.deterministic = options.deterministic;
  Checker check;
  if (problem.q_dtype == DType::e4m3) return declined("q.dtype", "e4m3", "f32 or f16 or bf16 or f64");
  check.expect(problem.has_lse, "forward.lse", "none", "the lse of the forward pass");
  problem.dout = check_gradient(check, "dout", desc.dout, desc.forward.out, false);
  problem.dq = check_gradient(check, "dq", desc.dq, desc.forward.q, true);
  problem.dk = check_gradient(check, "dk", desc.dk, desc.forward.k, true);
  problem.dv = check_gradient(check, "dv", desc.dv, desc.forward.v, true);
  if (desc.dlse && check.ok()) {
    problem.dlse = check_row_numbers(check, "dlse", *desc.dlse, problem, problem.ragged, false);
    problem.has_dlse = true;
  }
  if (desc.dbias && check.ok()) check_dbias(check, desc, problem);
  if (!check.ok()) return check.error();
  problem.dout_base_alignment = base_alignment(desc.dout);
  problem.dq_base_alignment = base_alignment(desc.dq);
  problem.dk_base_alignment = base_alignment(desc.dk);
  problem.dv_base_alignment = base_alignment(desc.dv);
  problem.dout_alignment = row_alignment(desc.dout);
  problem.dq_alignment = row_alignment(desc.dq);
  problem.dk_alignment = row_alignment(desc.dk);
  problem.dv_alignment = row_alignment(desc.dv);
  problem.gradient_extents = extents_of(kAttentionBackwardFields, desc);
  return problem;
}

Result<void> check_args(const AttentionBackwardProblem& problem, const AttentionBackwardArgs& args) {
  Pointers pointers;
  add_pointers(pointers, kAttentionFields, problem, args.forward, {problem.extents, Pointers::Access::read});
  add_pointers(pointers, kAttentionBackwardFields, problem, args, {problem.gradient_extents});
  return pointers.result();
}

}  // namespace fovea::detail
