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
using Launch = CudaStatus (*)(const topk::Params& params, unsigned ctas, int ordinal, Stream stream);

constexpr std::string_view kName = "cuda.portable.topk_rows";
constexpr std::int64_t kMostRows = std::int64_t{1} << 30;
constexpr std::int64_t kColumnsOfPart = 131072;  // at least

std::size_t shared_bytes(int ring_packs) { return sizeof(topk::Shared) + std::size_t{topk::kThreads} * topk::kPackBytes * ring_packs; }

/// As many as fit beside the CTAs of a multiprocessor, each of which takes a KiB more.
int ring_packs_of(const DeviceProperties& device) {
  const int ctas = topk::ctas_of_multiprocessor(device.capability);
  const int room = device.shared_bytes_per_multiprocessor / ctas - 1024 - static_cast<int>(sizeof(topk::Shared));
  return std::clamp(room / (topk::kThreads * topk::kPackBytes), 1, topk::kMostRingPacks);
}

template <class T>
CudaStatus launch_select(const topk::Params& params, unsigned ctas, int ordinal, Stream stream) {
  if (const CudaStatus good = allow_shared_bytes<&topk::select<T>>(ordinal, shared_bytes(params.ring_packs)); !good) return good;
  const LaunchShape shape{.grid = dim3(ctas), .block = dim3(topk::kThreads), .shared_bytes = shared_bytes(params.ring_packs)};
  return launch(topk::select<T>, shape, stream, params);
}

Launch launch_of(DType dtype) {
  if (dtype == DType::f32) return launch_select<float>;
  return dtype == DType::f16 ? launch_select<__half> : launch_select<__nv_bfloat16>;
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
        ordinal_(device.ordinal),
        parts_(parts_of(problem, properties(device)->multiprocessors)),
        ring_packs_(ring_packs_of(*properties(device))) {
    if (parts_ > 1) workspace_bytes = static_cast<std::size_t>(problem.rows * parts_ * problem.k) * sizeof(topk::Key);
  }

  std::string tuning() const override { return std::to_string(parts_) + (parts_ == 1 ? " part" : " parts") + " a row"; }

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
                              .parts = static_cast<unsigned>(parts_),
                              .rows_of_sequence = static_cast<unsigned>(problem_.batch > 0 ? problem_.rows / problem_.batch : 1),
                              .element_bytes = static_cast<unsigned>(size_of(problem_.dtype)),
                              .ring_packs = ring_packs_,
                              .sorted = problem_.sorted};
    const auto rows = static_cast<unsigned>(problem_.rows);
    const Result<void> selected = launch_of(problem_.dtype)(params, rows * params.parts, ordinal_, stream);
    if (!selected || parts_ == 1) return selected;
    return launch(topk::join, {.grid = dim3(rows), .block = dim3(topk::kThreads)}, stream, params);
  }

  int ordinal_, parts_, ring_packs_;
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
