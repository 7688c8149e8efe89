// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <memory>
#include <string>

#include "gpu/cuda/portable/implementations.hpp"
#include "gpu/cuda/portable/merge_states/kernel.cuh"
#include "gpu/plan_state.hpp"
#include "op/common/division.hpp"

namespace fovea::gpu::portable {
namespace {

using detail::MergeStatesProblem;
using Kernel = void (*)(merge::Params);

constexpr std::string_view kName = "cuda.portable.merge_states";

/// Elements that a lane moves at once: a full pack if all rows are aligned to it, else one.
int pack_of(const MergeStatesProblem& problem) {
  const auto pack = merge::kPackBytes / static_cast<std::int64_t>(size_of(problem.dtype));
  const auto aligned = [&](const MergeStatesProblem::Strides& strides) {
    return strides.alignment % merge::kPackBytes == 0 && strides.out_row % pack == 0 && strides.out_head % pack == 0;
  };
  const bool all = std::all_of(problem.parts.begin(), problem.parts.end(), aligned) && aligned(problem.out);
  return all && problem.head_dim_v % pack == 0 ? static_cast<int>(pack) : 1;
}

template <class T>
Kernel kernel_of(int pack) {
  return pack == 1 ? merge::merge_states<T, 1> : merge::merge_states<T, static_cast<int>(merge::kPackBytes / sizeof(T))>;
}

Kernel kernel_of(DType dtype, int pack) {
  if (dtype == DType::f32) return kernel_of<float>(pack);
  return dtype == DType::f16 ? kernel_of<__half>(pack) : kernel_of<__nv_bfloat16>(pack);
}

class State final : public PlanState<MergeStatesProblem, MergeStatesArgs> {
 public:
  State(const MergeStatesProblem& problem, Device device)
      : PlanState(kName, problem, device), cells_(problem.total_q * problem.heads), pack_(pack_of(problem)) {
    if (part_count() > merge::kPartsOfPass) {
      workspace_bytes = static_cast<std::size_t>(cells_ * (problem.head_dim_v + 2)) * sizeof(float);
    }
  }

  std::string tuning() const override {
    const int passes = detail::ceil_div(part_count(), merge::kPartsOfPass);
    return std::to_string(lanes()) + " lanes for each row and head, " + std::to_string(pack_ * size_of(problem_.dtype)) +
           " bytes a load; " + std::to_string(passes) + (passes == 1 ? " pass" : " passes");
  }

 private:
  bool is_empty() const override { return cells_ == 0; }

  Result<void> compute(const MergeStatesArgs& args, Workspace workspace, Stream stream, bool) const override {
    merge::Params params = common_params(args, workspace);
    const std::int64_t of_block = merge::kThreads / lanes(), blocks = detail::ceil_div(cells_, of_block);
    const LaunchShape shape{.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(merge::kThreads)};
    for (int begin = 0; begin < part_count(); begin += merge::kPartsOfPass) {
      take_parts(args, begin, params);
      if (Result<void> launched = launch(kernel_of(problem_.dtype, pack_), shape, stream, params); !launched) return launched;
    }
    return {};
  }

  /// Lanes of a row: as many as its columns need.
  int lanes() const {
    const std::int64_t of_lane = std::int64_t{pack_} * merge::kColumns;
    const std::int64_t lanes = std::clamp<std::int64_t>(detail::ceil_div(problem_.head_dim_v, of_lane), 1, 32);
    return static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(lanes)));
  }

  int part_count() const { return static_cast<int>(problem_.parts.size()); }

  merge::Params common_params(const MergeStatesArgs& args, Workspace workspace) const {
    merge::Params params{};
    params.result = {args.out,
                     problem_.has_lse ? args.lse : nullptr,
                     problem_.out.out_row,
                     problem_.out.out_head,
                     problem_.out.lse_row,
                     problem_.out.lse_head};
    if (workspace_bytes > 0) {
      auto* numbers = static_cast<float*>(workspace.data);
      params.carry = {numbers, numbers + cells_ * problem_.head_dim_v, numbers + cells_ * (problem_.head_dim_v + 1)};
    }
    params.cells = static_cast<std::uint32_t>(cells_);
    params.heads = static_cast<std::uint32_t>(problem_.heads);
    params.head_dim_v = problem_.head_dim_v;
    params.lanes = lanes();
    return params;
  }

  void take_parts(const MergeStatesArgs& args, int begin, merge::Params& params) const {
    params.part_count = std::min(merge::kPartsOfPass, part_count() - begin);
    params.first = begin == 0;
    params.last = begin + params.part_count == part_count();
    for (int i = 0; i < params.part_count; ++i) {
      const auto at = static_cast<std::size_t>(begin + i);
      const MergeStatesProblem::Strides& strides = problem_.parts[at];
      params.parts[i] = {args.parts[at].out, args.parts[at].lse, strides.out_row, strides.out_head, strides.lse_row, strides.lse_head};
    }
  }

  std::int64_t cells_;
  int pack_;
};

detail::PlanResult<MergeStatesArgs> plan(const MergeStatesProblem& problem, Device device) {
  if (auto reason = decline_device(device, kLowestCapability, kAnyLater)) return *reason;
  const std::int64_t cells = problem.total_q * problem.heads;
  if (cells > merge::kMostCells) return detail::declined("outs[0].shape (tokens times heads)", cells, "at most 2^31");
  return std::shared_ptr<const detail::PlanState<MergeStatesArgs>>(std::make_shared<State>(problem, device));
}

constexpr detail::Implementation<detail::MergeStates> kRow{kName,
                                                           "f32, f16, bf16; any head dim",
                                                           detail::handles<detail::MergeStates>("lse"),
                                                           Backend::cuda,
                                                           unavailable<kLowestCapability, kAnyLater>,
                                                           plan};

}  // namespace

detail::Implementations<detail::MergeStates> implementations(detail::MergeStates) { return {&kRow, 1}; }

}  // namespace fovea::gpu::portable
