// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>

#include "cpu/implementations.hpp"
#include "cpu/parallel.hpp"
#include "op/merge_states/problem.hpp"

namespace fovea::cpu {
namespace {

using detail::MergeStatesProblem;

constexpr float kNothing = -std::numeric_limits<float>::infinity();

/// One (row, head) of a call.
struct Cell {
  const MergeStatesProblem& problem;
  const MergeStatesArgs& args;
  std::int64_t row = 0, head = 0;

  float lse(std::size_t part) const {
    const MergeStatesProblem::Strides& strides = problem.parts[part];
    return args.parts[part].lse[row * strides.lse_row + head * strides.lse_head];
  }
  const std::byte* out(std::size_t part) const {
    const MergeStatesProblem::Strides& strides = problem.parts[part];
    return static_cast<const std::byte*>(args.parts[part].out) + (row * strides.out_row + head * strides.out_head) * element();
  }
  std::int64_t element() const { return static_cast<std::int64_t>(size_of(problem.dtype)); }
};

/// Reads everything of a cell before it writes anything, piece by piece, so that parts may be merged in place.
void merge_cell(const RowKernels& rows, const Cell& cell) {
  const MergeStatesProblem& problem = cell.problem;
  const std::size_t parts = problem.parts.size();
  float largest = kNothing;
  for (std::size_t part = 0; part < parts; ++part) {
    if (const float lse = cell.lse(part); std::isfinite(lse)) largest = std::max(largest, lse);
  }
  double sum = 0;
  const auto weight = [&](std::size_t part) {  // zero for an empty part
    const float lse = cell.lse(part);
    return std::isfinite(lse) ? std::exp(static_cast<double>(lse) - static_cast<double>(largest)) : 0.0;
  };
  for (std::size_t part = 0; part < parts; ++part) sum += weight(part);

  constexpr std::int64_t kPiece = 256;
  const auto dtype = static_cast<std::size_t>(problem.dtype);
  std::byte* out =
      static_cast<std::byte*>(cell.args.out) + (cell.row * problem.out.out_row + cell.head * problem.out.out_head) * cell.element();
  for (std::int64_t d = 0; d < problem.head_dim_v; d += kPiece) {
    const std::int64_t count = std::min(kPiece, problem.head_dim_v - d);
    std::array<float, kPiece> acc{};
    for (std::size_t part = 0; part < parts; ++part) {
      if (!std::isfinite(cell.lse(part))) continue;
      rows.add_scaled[dtype](acc.data(), cell.out(part) + d * cell.element(), static_cast<float>(weight(part) / sum), count);
    }
    rows.store_divided[dtype](out + d * cell.element(), acc.data(), 1.0f, 1.0f, count);
  }
  if (problem.has_lse) {
    float& lse = cell.args.lse[cell.row * problem.out.lse_row + cell.head * problem.out.lse_head];
    lse = sum == 0 ? kNothing : static_cast<float>(static_cast<double>(largest) + std::log(sum));
  }
}

Work work_of(const MergeStatesProblem& problem) {
  return {.elements =
              static_cast<double>(problem.total_q * problem.heads * problem.head_dim_v) * static_cast<double>(problem.parts.size())};
}

class State final : public detail::PlanState<MergeStatesArgs> {
 public:
  State(std::string_view name, const MergeStatesProblem& problem, const RowKernels& rows)
      : problem_(problem), rows_(rows), threads_(worthwhile_threads(work_of(problem), problem.total_q, planned_threads())) {
    implementation = name;
  }

  Result<void> prepare(const MergeStatesArgs& args, Workspace, Stream) const override { return check_args(problem_, args); }

  Result<void> run(const MergeStatesArgs& args, Workspace, Stream, bool) const override {
    if (Result<void> good = check_args(problem_, args); !good) return good;
    parallel_for(threads_, [&](int thread) {
      for (std::int64_t row = problem_.total_q * thread / threads_; row < problem_.total_q * (thread + 1) / threads_; ++row) {
        for (std::int64_t head = 0; head < problem_.heads; ++head) merge_cell(rows_, {problem_, args, row, head});
      }
    });
    return {};
  }

  std::string tuning() const override {
    return "one row at a time; " + std::to_string(threads_) + (threads_ == 1 ? " thread" : " threads");
  }

 private:
  MergeStatesProblem problem_;
  const RowKernels& rows_;
  int threads_;
};

template <class Isa>
detail::PlanResult<MergeStatesArgs> plan(const MergeStatesProblem& problem, Device) {
  return std::shared_ptr<const detail::PlanState<MergeStatesArgs>>(
      std::make_shared<State>(kEntryName<detail::MergeStates, Isa>, problem, Isa::kernels().rows));
}

constexpr std::string_view kAccepts = "f32, f16, bf16; any head dim";
constexpr auto kHandled = detail::handles<detail::MergeStates>("lse");

constexpr auto kEntries = RowSets::each([]<class Isa>() { return entry<detail::MergeStates, Isa>(kAccepts, kHandled, plan<Isa>); });

}  // namespace

detail::Implementations<detail::MergeStates> implementations(detail::MergeStates) { return kEntries; }

}  // namespace fovea::cpu
