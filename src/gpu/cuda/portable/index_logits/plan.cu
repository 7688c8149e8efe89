// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <string>

#include "gpu/cuda/portable/implementations.hpp"
#include "gpu/cuda/portable/index_logits/kernel.cuh"
#include "gpu/plan_state.hpp"
#include "op/common/division.hpp"
#include "op/index_logits/keys.hpp"
#include "op/index_logits/problem.hpp"

namespace fovea::gpu::portable {
namespace {

using detail::IndexLogitsProblem;
using Kernel = void (*)(indexer::Params);

constexpr std::string_view kName = "cuda.portable.index_logits";
constexpr std::int64_t kMostCtas = std::int64_t{1} << 30;
constexpr int kCtasOfSm = 8;  // four turns of those that a multiprocessor holds

template <class Out>
Kernel kernel_of(const IndexLogitsProblem& problem) {
  return problem.head_dim == 64 ? indexer::index_logits<Out, 64> : indexer::index_logits<Out, 128>;
}

class State final : public PlanState<IndexLogitsProblem, IndexLogitsArgs> {
 public:
  State(const IndexLogitsProblem& problem, Device device)
      : PlanState(kName, problem, device),
        aligned_(problem.q_alignment % 16 == 0 && problem.k_alignment % 16 == 0),
        tiles_(detail::ceil_div(problem.columns, indexer::kKeyTile)),
        rows_of_group_(rows_of_group(problem, tiles_, properties(device)->multiprocessors)) {}

  std::string tuning() const override {
    return std::to_string(indexer::kKeyTile) + " keys a CTA, " + std::to_string(rows_of_group_) +
           (rows_of_group_ == 1 ? " query" : " queries") + (aligned_ ? "" : "; byte by byte: rows are not aligned to 16 bytes");
  }

  std::int64_t ctas() const { return tiles_ * detail::ceil_div(problem_.rows, rows_of_group_); }

 private:
  /// As few as fill the device. Queries of one sequence read the same keys.
  static std::int64_t rows_of_group(const IndexLogitsProblem& problem, std::int64_t tiles, int multiprocessors) {
    if (problem.paged) return std::max<std::int64_t>(problem.rows_of_sequence(), 1);
    const std::int64_t groups = detail::ceil_div(std::int64_t{kCtasOfSm} * multiprocessors, std::max<std::int64_t>(tiles, 1));
    return std::max<std::int64_t>(detail::ceil_div(problem.rows, groups), 1);
  }

  bool is_empty() const override { return problem_.rows * problem_.columns == 0; }

  Result<void> compute(const IndexLogitsArgs& args, Workspace, Stream stream, bool) const override {
    const indexer::Params params{
        .args = args_in_use(problem_, args), .shape = problem_, .key_tiles = tiles_, .rows_of_group = rows_of_group_, .aligned = aligned_};
    const Kernel kernel = problem_.out_dtype == DType::f32 ? kernel_of<float>(problem_) : kernel_of<__nv_bfloat16>(problem_);
    return launch(kernel, {.grid = dim3(static_cast<unsigned>(ctas())), .block = dim3(indexer::kThreads)}, stream, params);
  }

  bool aligned_;
  std::int64_t tiles_, rows_of_group_;
};

detail::PlanResult<IndexLogitsArgs> plan(const IndexLogitsProblem& problem, Device device) {
  if (auto reason = decline_device(device, kLowestCapability, kAnyLater)) return *reason;
  auto state = std::make_shared<State>(problem, device);
  if (state->ctas() > kMostCtas)
    return detail::declined("out.shape (rows times columns)", state->ctas(), "at most 2^30 tiles of 256 columns");
  return std::shared_ptr<const detail::PlanState<IndexLogitsArgs>>(std::move(state));
}

constexpr detail::Implementation<detail::IndexLogits> kRow{
    kName,
    "e4m3 q and k, flat or paged; f32 or bf16 out",
    detail::handles<detail::IndexLogits>("block_table", "first", "last", "keep_outside"),
    Backend::cuda,
    unavailable<kLowestCapability, kAnyLater>,
    plan};

}  // namespace

detail::Implementations<detail::IndexLogits> implementations(detail::IndexLogits) { return {&kRow, 1}; }

}  // namespace fovea::gpu::portable
