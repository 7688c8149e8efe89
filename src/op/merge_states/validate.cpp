// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "op/common/checks.hpp"
#include "op/merge_states/problem.hpp"

namespace fovea::detail {
namespace {

constexpr std::array<std::string_view, 3> kOutAxes{"total_q", "head", "head_dim_v"};
constexpr std::array<std::string_view, 2> kLseAxes{"total_q", "head"};
constexpr std::array kF32{DType::f32};

void check_out(Checker& check, const NamedTensor& out, const TensorDesc& like) {
  const std::array dtype{like.dtype};
  check_tensor(check, out);
  check_values(check, out, dtype);
  for (int axis = 0; axis < 3; ++axis) check_extent(check, out, axis, like.shape[static_cast<std::size_t>(axis)], "out.shape");
}

void check_lse(Checker& check, const NamedTensor& lse, const TensorDesc& out) {
  check_tensor(check, lse);
  check_dtype(check, lse, kF32);
  check_extent(check, lse, 0, out.shape[0], "out.shape[0]");
  check_extent(check, lse, 1, out.shape[1], "out.shape[1]");
}

MergeStatesProblem::Strides strides(const TensorDesc& out, const TensorDesc* lse) {
  MergeStatesProblem::Strides result{out.strides[0], out.strides[1]};
  if (lse != nullptr) {
    result.lse_row = lse->strides[0];
    result.lse_head = lse->strides[1];
    result.lse_extent = extent_of(*lse);
  }
  result.alignment = base_alignment(out);
  result.out_extent = extent_of(out);
  return result;
}

/// Such a result overwrites a part element by element, each after it has been read.
bool is_same(const Memory& result, const Memory& part) { return result.address == part.address && *result.extent == *part.extent; }

}  // namespace

Result<MergeStatesProblem> validate(const MergeStatesDesc& desc, const PlanOptions&) {
  constexpr std::array kDTypes{DType::f32, DType::f16, DType::bf16};
  const NamedTensor out{"out", desc.out, kOutAxes, true};
  Checker check;
  check_tensor(check, out);
  check_values(check, out, kDTypes);
  const bool countable = !desc.parts.empty() && desc.parts.size() <= MergeStatesDesc::kMostParts;
  check.expect(countable, "parts (count)", static_cast<std::int64_t>(desc.parts.size()), "1 to 2^20");
  check.expect(!check.ok() || desc.out.shape[1] >= 1, "out.shape[1] (head)", desc.out.shape[1], "1 or more");
  check.expect(!check.ok() || desc.out.shape[2] >= 1, "out.shape[2] (head_dim_v)", desc.out.shape[2], "1 or more");
  if (desc.lse) check_lse(check, {"lse", *desc.lse, kLseAxes, true, false}, desc.out);

  MergeStatesProblem problem;
  for (std::size_t i = 0; check.ok() && i < desc.parts.size(); ++i) {
    const std::string name = "parts[" + std::to_string(i) + "]";
    const std::string out_name = name + ".out", lse_name = name + ".lse";
    check_out(check, {out_name, desc.parts[i].out, kOutAxes}, desc.out);
    check_lse(check, {lse_name, desc.parts[i].lse, kLseAxes, false, false}, desc.out);
    if (check.ok()) problem.parts.push_back(strides(desc.parts[i].out, &desc.parts[i].lse));
  }
  if (!check.ok()) return check.error();
  problem.dtype = desc.out.dtype;
  problem.total_q = desc.out.shape[0];
  problem.heads = desc.out.shape[1];
  problem.head_dim_v = desc.out.shape[2];
  problem.out = strides(desc.out, desc.lse ? &*desc.lse : nullptr);
  problem.has_lse = desc.lse.has_value();
  return problem;
}

Result<void> check_args(const MergeStatesProblem& problem, const MergeStatesArgs& args) {
  if (args.parts.size() != problem.parts.size()) {
    return invalid("args.parts (count)", static_cast<std::int64_t>(args.parts.size()),
                   std::to_string(problem.parts.size()) + ", as planned");
  }
  Checker check;
  const bool any = problem.total_q > 0;
  const Memory out{args.out, &problem.out.out_extent}, lse{any && problem.has_lse ? args.lse : nullptr, &problem.out.lse_extent};
  for (std::size_t i = 0; any && check.ok() && i < args.parts.size(); ++i) {
    const std::string name = "parts[" + std::to_string(i) + "]";
    const std::string out_name = name + ".out", lse_name = name + ".lse";
    check_pointer(check, out_name, args.parts[i].out, any, problem.parts[i].alignment);
    check_pointer(check, lse_name, args.parts[i].lse, any, sizeof(float));
    const Memory part_out{args.parts[i].out, &problem.parts[i].out_extent}, part_lse{args.parts[i].lse, &problem.parts[i].lse_extent};
    check_apart(check, "out", out, lse_name, part_lse);
    check_apart(check, "lse", lse, out_name, part_out);
    if (!is_same(out, part_out)) check_apart(check, "out", out, out_name, part_out);
    if (!is_same(lse, part_lse)) check_apart(check, "lse", lse, lse_name, part_lse);
  }
  check_pointer(check, "out", args.out, any, problem.out.alignment);
  check_pointer(check, "lse", lse.address, any && problem.has_lse, sizeof(float));
  check_apart(check, "lse", lse, "out", out);
  if (!check.ok()) return check.error();
  return {};
}

}  // namespace fovea::detail
