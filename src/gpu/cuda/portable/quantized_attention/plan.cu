// SPDX-License-Identifier: Apache-2.0
/// 8-bit attention: accepts or declines, and launches.
#include <array>
#include <memory>
#include <string>
#include <utility>

#include "gpu/cuda/common/attention_plan.hpp"
#include "gpu/cuda/common/instances.hpp"
#include "gpu/cuda/common/target.cuh"
#include "gpu/cuda/portable/attention/config.hpp"
#include "gpu/cuda/portable/implementations.hpp"
#include "gpu/cuda/portable/quantized_attention/config.hpp"
#include "gpu/plan_state.hpp"
#include "op/quantized_attention/problem.hpp"

namespace fovea::gpu::portable {
namespace quantized_attention {
namespace {

using detail::declined;
using Problem = detail::QuantizedAttentionProblem;
using attention::kLimit;

constexpr std::string_view kName = "cuda.portable.quantized_attention";

using Launch = CudaStatus (*)(const Params&, int, int, Stream);

template <class ValueElement>
Launch launch_of(int tuning) {
  return function_of_row<kTunings.size()>(tuning, [](auto row) -> Launch { return &launch_attend<Config<ValueElement, row.value>>; });
}

class State final : public PlanState<Problem, QuantizedAttentionArgs> {
 public:
  State(const Problem& problem, Device device, const DeviceProperties& properties) : PlanState(kName, problem, device) {
    tuning_ = tuning_index(problem.head_dim_qk, static_cast<int>(size_of(problem.v_dtype)), properties.shared_bytes_per_block);
    const std::int64_t tokens = row().row_tile(), q_tiles = detail::ceil_div(problem.max_seq_q, tokens);
    // Every sequence of a ragged batch may end inside of a tile.
    const std::int64_t all_tiles = std::min(problem.batch * q_tiles, problem.total_q / tokens + problem.batch);
    params_.q_tiles = static_cast<int>(std::min<std::int64_t>(problem.ragged ? all_tiles : q_tiles, kLimit));
    work_tiles_ = (problem.ragged ? all_tiles : q_tiles * problem.batch) * problem.heads;
    fill_shape();
  }

  std::int64_t work_tiles() const { return work_tiles_; }

  std::string tuning() const override {
    std::string text = std::to_string(row().row_tile()) + " x " + std::to_string(row().key_tile) + " tiles";
    if (row().stages == 2) text += ", two stages";
    if (problem_.v_dtype == DType::e4m3 && has_e4m3_mma(target())) text += kE4m3Products;
    return text;
  }

 private:
  const Tuning& row() const { return kTunings[static_cast<std::size_t>(tuning_)]; }
  int target() const { return device_.capability != 0 ? device_.capability : target_on<Config<__nv_fp8_e4m3, 0>>(device_.ordinal); }
  bool is_empty() const override { return problem_.total_q == 0 || work_tiles_ == 0; }

  Result<void> compute(const QuantizedAttentionArgs& args, Workspace, Stream stream, bool) const override {
    Params params = params_;
    params.q.data = args.q;
    params.k.data = args.k;
    params.v.data = args.v;
    params.out.data = args.out;
    params.cu_seqlens_q = problem_.ragged ? args.cu_seqlens_q : nullptr;
    params.cu_seqlens_k = problem_.ragged ? args.cu_seqlens_k : nullptr;
    params.lse = problem_.has_lse ? args.lse : nullptr;
    fill_codes(params.codes, problem_, args);
    const Launch launch = problem_.v_dtype == DType::f16 ? launch_of<__half>(tuning_) : launch_of<__nv_fp8_e4m3>(tuning_);
    return launch(params, static_cast<int>(work_tiles_), device_.ordinal, stream);
  }

  void fill_shape() {
    const auto aligned = [](std::int32_t alignment) { return alignment % 16 == 0; };
    params_.q = {nullptr, problem_.q, aligned(problem_.q_alignment)};
    params_.k = {nullptr, problem_.k, aligned(problem_.k_alignment)};
    params_.v = {nullptr, problem_.v, aligned(problem_.v_alignment)};
    params_.out = {nullptr, problem_.out, aligned(problem_.out_alignment)};
    fill_problem(params_, problem_);
    params_.numbers = attention::work_numbers(params_);
    params_.lse_strides = problem_.lse;
    params_.scale_log2 = in_base_2(problem_.scale);
    params_.codes = codes_of(problem_);
    params_.out_dtype = problem_.out_dtype;
  }

  int tuning_ = 0;
  std::int64_t work_tiles_ = 0;
  Params params_{};
};

detail::PlanResult<QuantizedAttentionArgs> plan(const Problem& problem, Device device) {
  if (auto reason = decline_device(device, kLowestCapability, kAnyLater)) return *reason;
  if (auto reason = decline_int8_head_dims(problem)) return *reason;
  for (const auto& [name, count] : {std::pair{"q.shape (rows)", problem.total_q},
                                    {"k.shape (rows)", problem.max_seq_k},
                                    {"q.shape (head)", problem.heads},
                                    {"batch", problem.batch}}) {
    if (count >= kLimit) return declined(name, count, "below 2^30");
  }
  auto state = std::make_shared<State>(problem, device, *properties(device));
  if (state->work_tiles() >= kLimit) return declined("q.shape (work tiles)", state->work_tiles(), "below 2^30");
  return std::shared_ptr<const detail::PlanState<QuantizedAttentionArgs>>(std::move(state));
}

constexpr detail::Implementation<detail::QuantizedAttention> kRow{
    kName,
    "int8 q and k, f16 or e4m3 v; head dims 64, 96, 128, 256; any strides",
    detail::handles<detail::QuantizedAttention>("ragged", "mask.left", "mask.right", "mask.anchor (top_left)", "lse", "lse_shift",
                                                "v_scale", "v_mean", "groups.granularity", "groups.warp_rows", "options.batch_invariant"),
    Backend::cuda,
    unavailable<kLowestCapability, kAnyLater>,
    plan};

}  // namespace
}  // namespace quantized_attention

detail::Implementations<detail::QuantizedAttention> implementations(detail::QuantizedAttention) { return {&quantized_attention::kRow, 1}; }

}  // namespace fovea::gpu::portable
