// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <string>

#include "gpu/hip/cdna/implementations.hpp"
#include "gpu/hip/cdna/merge_states/params.hpp"
#include "gpu/hip/plan_state.hpp"
#include "op/common/division.hpp"
#include "op/merge_states/problem.hpp"

namespace fovea::gpu::cdna {
namespace merge {
namespace {

using Problem = detail::MergeStatesProblem;

constexpr std::string_view kName = "hip.cdna.merge_states";
constexpr std::int64_t kMostCells = hip::kMostWorkgroups * kWaves;

class State final : public hip::PlanState<Problem, MergeStatesArgs> {
 public:
  State(const Problem& problem, Device device) : PlanState(kName, problem, device), cells_(problem.total_q * problem.heads) {
    if (part_count() > kPartsOfPass) workspace_bytes = static_cast<std::size_t>(cells_ * (problem.head_dim_v + 2)) * sizeof(float);
  }

  Result<void> load() {
    Result<hip::FunctionHandle> found =
        hip::find_kernel(device_.ordinal, "merge", std::string("merge_states_").append(name_of(problem_.dtype)));
    if (!found) return found.error();
    kernel_ = *found;
    return {};
  }

  std::string tuning() const override {
    const int passes = detail::ceil_div(part_count(), kPartsOfPass);
    return "a wave for each row and head; " + std::to_string(passes) + (passes == 1 ? " pass" : " passes") + FOVEA_HIP_STATUS;
  }

 private:
  bool is_empty() const override { return cells_ == 0; }
  int part_count() const { return static_cast<int>(problem_.parts.size()); }

  Result<void> compute(const MergeStatesArgs& args, Workspace workspace, Stream stream, bool) const override {
    Params params = common_params(args, workspace);
    const hip::LaunchShape shape{.grid = {static_cast<unsigned>(detail::ceil_div(cells_, kWaves)), 1, 1}, .threads = 64 * kWaves};
    for (int begin = 0; begin < part_count(); begin += kPartsOfPass) {
      take_parts(args, begin, params);
      if (Result<void> launched = hip::launch(kernel_, shape, stream, &params); !launched) return launched;
    }
    return {};
  }

  Params common_params(const MergeStatesArgs& args, Workspace workspace) const {
    const Problem::Strides& out = problem_.out;
    Params params{};
    params.result = {args.out, problem_.has_lse ? args.lse : nullptr, out.out_row, out.out_head, out.lse_row, out.lse_head};
    if (workspace_bytes > 0) {
      auto* numbers = static_cast<float*>(workspace.data);
      params.carry = {numbers, numbers + cells_ * problem_.head_dim_v, numbers + cells_ * (problem_.head_dim_v + 1)};
    }
    params.cells = cells_;
    params.heads = problem_.heads;
    params.head_dim_v = problem_.head_dim_v;
    return params;
  }

  void take_parts(const MergeStatesArgs& args, int begin, Params& params) const {
    params.part_count = std::min(kPartsOfPass, part_count() - begin);
    params.first = begin == 0;
    params.last = begin + params.part_count == part_count();
    for (int i = 0; i < params.part_count; ++i) {
      const auto at = static_cast<std::size_t>(begin + i);
      const Problem::Strides& strides = problem_.parts[at];
      params.parts[i] = {args.parts[at].out, args.parts[at].lse, strides.out_row, strides.out_head, strides.lse_row, strides.lse_head};
    }
  }

  std::int64_t cells_;
  hip::FunctionHandle kernel_ = nullptr;
};

detail::PlanResult<MergeStatesArgs> plan(const Problem& problem, Device device) {
  if (auto reason = hip::decline_device(device)) return *reason;
  if (problem.total_q * problem.heads > kMostCells) {
    return detail::declined("out.shape (rows * heads)", problem.total_q * problem.heads, "at most " + std::to_string(kMostCells));
  }
  auto state = std::make_shared<State>(problem, device);
  if (device.capability == 0) {
    if (Result<void> loaded = state->load(); !loaded) return loaded.error();
  }
  return std::shared_ptr<const detail::PlanState<MergeStatesArgs>>(std::move(state));
}

constexpr detail::Implementation<detail::MergeStates> kRow{
    kName, "f32, f16, bf16; any head dim" FOVEA_HIP_STATUS, detail::handles<detail::MergeStates>("lse"), Backend::hip, hip::unavailable,
    plan};

}  // namespace
}  // namespace merge

detail::Implementations<detail::MergeStates> implementations(detail::MergeStates) { return {&merge::kRow, 1}; }

}  // namespace fovea::gpu::cdna
