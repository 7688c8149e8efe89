// SPDX-License-Identifier: Apache-2.0
/// 8-bit attention: accepts or declines, and launches.
#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>

#include "gpu/cuda/common/attention_plan.hpp"
#include "gpu/cuda/common/instances.hpp"
#include "gpu/cuda/sm90/dense/plan.hpp"
#include "gpu/cuda/sm90/dense/storage.cuh"
#include "gpu/cuda/sm90/dense/value_tiles.cuh"
#include "gpu/cuda/sm90/implementations.hpp"
#include "gpu/cuda/sm90/quantized_attention/config.hpp"
#include "gpu/plan_state.hpp"
#include "op/quantized_attention/problem.hpp"

namespace fovea::gpu::sm90 {
namespace quantized_attention {
namespace {

using detail::declined;
using Problem = detail::QuantizedAttentionProblem;

constexpr std::string_view kName = "cuda.sm90.quantized_attention";

std::array<RowsDesc, 4> tensors_of(const Problem& problem) {
  std::array<RowsDesc, 4> tensors = dense::forward_tensors(problem, problem.out_dtype);
  tensors[2].dtype = problem.v_dtype;
  return tensors;
}

using Launch = CudaStatus (*)(const Params&, int, int, Stream);

template <class ValueElement>
Launch launch_of(int tuning) {
  return function_of_row<tunings_of(sizeof(ValueElement) == 1).size()>(
      tuning, [](auto index) { return &launch_attend<Config<ValueElement, index>>; });
}

class State final : public PlanState<Problem, QuantizedAttentionArgs> {
 public:
  State(const Problem& problem, Device device, const DeviceProperties& properties)
      : PlanState(kName, problem, device), multiprocessors_(properties.multiprocessors) {
    index_ = attention::tuning_index(tunings_of(e4m3_values()), problem.head_dim_qk, problem.head_dim_v, problem.max_seq_q);
    const std::int64_t tokens = row().row_tile(), heads = problem.heads * problem.batch;
    work_tiles_ = detail::ceil_div(problem.max_seq_q, tokens) * heads;
    params_.order = dense::tile_order(problem, tokens, heads, ctas(), !row().overlap);
    fill_problem(params_, problem);
    params_.lse_strides = problem.lse;
    params_.scale_log2 = in_base_2(problem.scale);
    params_.codes = codes_of(problem);
    params_.key_block_stride = problem.groups.k_per_block() * problem.k_scales.row;
    params_.out_dtype = problem.out_dtype;
    if (e4m3_values()) value_tiles_ = dense::value_tiles_of(problem, row().key_tile, row().head_dim_v);
    if (!problem.v_in_tiles) workspace_bytes = value_tiles_.bytes();
  }

  std::int64_t work_tiles() const { return work_tiles_; }
  std::int64_t value_tiles() const { return value_tiles_.count; }

  std::string tuning() const override { return tiles_text(row(), 1, 1).append(e4m3_values() ? kE4m3Products : ""); }

 private:
  bool is_empty() const override { return problem_.batch == 0 || problem_.total_q == 0 || problem_.max_seq_q == 0; }

  Result<void> compute(const QuantizedAttentionArgs& args, Workspace workspace, Stream stream, bool) const override {
    Params params = params_;
    if (Result<void> good = fill(params, args, workspace); !good) return good;
    if (!e4m3_values()) return launch_of<__half>(index_)(params, ctas(), device_.ordinal, stream);
    if (!problem_.v_in_tiles) {
      Result<void> good = dense::launch_transpose(value_tiles_, params.v.data, params.cu_seqlens_k, workspace.data, stream);
      if (!good) return good;
    }
    return launch_of<__nv_fp8_e4m3>(index_)(params, ctas(), device_.ordinal, stream);
  }

  bool e4m3_values() const { return problem_.v_dtype == DType::e4m3; }
  const Tuning& row() const { return tunings_of(e4m3_values())[static_cast<std::size_t>(index_)]; }
  int ctas() const { return static_cast<int>(std::min<std::int64_t>(work_tiles_, multiprocessors_)); }

  /// Sets the fields that a run knows.
  Result<void> fill(Params& params, const QuantizedAttentionArgs& args, Workspace workspace) const {
    const std::array<RowsDesc, 4> tensors = tensors_of(problem_);
    dense::fill_rows(params, tensors, {args.q, args.k, args.v, args.out}, dense::kWarpgroupRows, row().key_tile);
    if (Result<void> good = encode_rows(params.q, tensors[0]); !good) return good;
    if (Result<void> good = encode_rows(params.k, tensors[1]); !good) return good;
    if (Result<void> good = e4m3_values() ? Result<void>{} : encode_rows(params.v, tensors[2]); !good) return good;
    fill_codes(params.codes, problem_, args);
    params.cu_seqlens_q = problem_.ragged ? args.cu_seqlens_q : nullptr;
    params.cu_seqlens_k = problem_.ragged ? args.cu_seqlens_k : nullptr;
    params.lse = problem_.has_lse ? args.lse : nullptr;
    params.value_tiles = static_cast<const std::byte*>(problem_.v_in_tiles ? args.v : workspace.data);
    return {};
  }

  int multiprocessors_;
  int index_ = 0;  ///< row of tuning.hpp
  std::int64_t work_tiles_ = 0;
  dense::ValueTiles value_tiles_{};  ///< with e4m3
  Params params_{};
};

detail::PlanResult<QuantizedAttentionArgs> plan(const Problem& problem, Device device) {
  if (auto reason = decline_device(device, kCapability, kCapability)) return *reason;
  if (auto reason = decline_int8_head_dims(problem)) return *reason;
  if (problem.head_dim_qk > 128) return declined("q.shape (head_dim)", problem.head_dim_qk, "64, 96 or 128");
  if (Result<void> good = dense::accept_dense(problem, tensors_of(problem)); !good) return good.error();
  auto state = std::make_shared<State>(problem, device, *properties(device));
  if (state->work_tiles() >= kCountLimit) return declined("q.shape (work tiles)", state->work_tiles(), "below 2^30");
  if (state->value_tiles() >= kCountLimit) return declined("v.shape (key tiles)", state->value_tiles(), "below 2^30");
  return std::shared_ptr<const detail::PlanState<QuantizedAttentionArgs>>(std::move(state));
}

constexpr detail::Implementation<detail::QuantizedAttention> kRow{
    kName,
    "int8 q and k, f16 or e4m3 v; head dims 64, 96, 128; rows aligned to 16 bytes; with e4m3 v, probabilities are rounded to e4m3",
    detail::handles<detail::QuantizedAttention>("ragged", "mask.left", "mask.right", "mask.anchor (top_left)", "lse", "lse_shift",
                                                "v_scale", "v_mean", "groups.granularity", "groups.warp_rows", "options.batch_invariant"),
    Backend::cuda,
    unavailable<kCapability, kCapability>,
    plan,
    nullptr,
    {.value_tiles = true}};

}  // namespace
}  // namespace quantized_attention

detail::Implementations<detail::QuantizedAttention> implementations(detail::QuantizedAttention) { return {&quantized_attention::kRow, 1}; }

}  // namespace fovea::gpu::sm90
