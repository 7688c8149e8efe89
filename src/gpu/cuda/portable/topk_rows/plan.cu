// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <string>

#include "gpu/cuda/portable/implementations.hpp"
#include "gpu/cuda/portable/topk_rows/kernel.cuh"
#include "gpu/plan_state.hpp"
#include "op/common/division.hpp"
#include "op/topk_rows/place.hpp"
#include "op/topk_rows/problem.hpp"

namespace fovea::gpu::portable {
namespace {

using detail::TopkRowsProblem;
using Kernel = void (*)(topk::Params);

constexpr std::string_view kName = "cuda.portable.topk_rows";
constexpr std::int64_t kMostRows = std::int64_t{1} << 30;
constexpr std::int64_t kColumnsOfPart = 131072;  // at least

template <bool kAligned>
Kernel kernel_of(DType dtype) {
  if (dtype == DType::f32) return topk::select<float, kAligned>;
  return dtype == DType::f16 ? topk::select<__half, kAligned> : topk::select<__nv_bfloat16, kAligned>;
}

/// Few long rows are split, so that more multiprocessors read. Joining costs more than that gains below some 10^5 columns a part.
int parts_of(const TopkRowsProblem& problem, int multiprocessors) {
  const std::int64_t free = std::int64_t{multiprocessors} / std::max<std::int64_t>(problem.rows, 1);
  return static_cast<int>(std::clamp<std::int64_t>(std::min(free, problem.columns / kColumnsOfPart), 1, 64));
}

class State final : public PlanState<TopkRowsProblem, TopkRowsArgs> {
 public:
  State(const TopkRowsProblem& problem, Device device)
      : PlanState(kName, problem, device),
        aligned_(problem.row_alignment % 16 == 0),
        parts_(parts_of(problem, properties(device)->multiprocessors)) {
    if (parts_ > 1) workspace_bytes = static_cast<std::size_t>(problem.rows * parts_ * problem.k) * sizeof(topk::Key);
  }

  std::string tuning() const override {
    return std::to_string(parts_) + (parts_ == 1 ? " part" : " parts") + " a row, " +
           (aligned_ ? "16 bytes a load" : "element by element: rows are not aligned to 16 bytes");
  }

 private:
  bool is_empty() const override { return problem_.rows * problem_.k == 0; }

  Result<void> compute(const TopkRowsArgs& given, Workspace workspace, Stream stream, bool) const override {
    const TopkRowsArgs args = detail::args_in_use(problem_, given);
    const topk::Params params{.logits = args.logits,
                              .out = args.out,
                              .partial = parts_ > 1 ? static_cast<topk::Key*>(workspace.data) : nullptr,
                              .first = args.first,
                              .last = args.last,
                              .offset = args.offset,
                              .block_table = args.block_table,
                              .row_stride = problem_.row_stride,
                              .out_stride = problem_.out_stride,
                              .columns = problem_.columns,
                              .table_stride = problem_.table_stride,
                              .max_blocks = problem_.max_blocks,
                              .page = problem_.page,
                              .k = static_cast<unsigned>(problem_.k),
                              .parts = parts_,
                              .rows_of_sequence = static_cast<int>(problem_.batch > 0 ? problem_.rows / problem_.batch : 1),
                              .sorted = problem_.sorted};
    const dim3 block(topk::kThreads), rows(static_cast<unsigned>(problem_.rows)), grid(rows.x * static_cast<unsigned>(parts_));
    const Kernel kernel = aligned_ ? kernel_of<true>(problem_.dtype) : kernel_of<false>(problem_.dtype);
    const Result<void> selected = launch(kernel, {.grid = grid, .block = block}, stream, params);
    if (!selected || parts_ == 1) return selected;
    return launch(topk::join, {.grid = rows, .block = block}, stream, params);
  }

  bool aligned_;
  int parts_;
};

detail::PlanResult<TopkRowsArgs> plan(const TopkRowsProblem& problem, Device device) {
  if (auto reason = decline_device(device, kLowestCapability, kAnyLater)) return *reason;
  if (problem.k > topk::kMostK) return detail::declined("out.shape[1] (k)", problem.k, "at most " + std::to_string(topk::kMostK));
  if (problem.rows >= kMostRows) return detail::declined("logits.shape[0] (row)", problem.rows, "below 2^30");
  return std::shared_ptr<const detail::PlanState<TopkRowsArgs>>(std::make_shared<State>(problem, device));
}

constexpr detail::Implementation<detail::TopkRows> kRow{
    kName,
    "f32, f16, bf16; k up to 2048",
    detail::handles<detail::TopkRows>("first", "last", "offset", "block_table", "sorted"),
    Backend::cuda,
    unavailable<kLowestCapability, kAnyLater>,
    plan};

}  // namespace

detail::Implementations<detail::TopkRows> implementations(detail::TopkRows) { return {&kRow, 1}; }

}  // namespace fovea::gpu::portable
