// SPDX-License-Identifier: Apache-2.0
/// The gradient of dense attention: accepts or declines, places the workspace, and launches.
#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>

#include "gpu/cuda/common/gradient/list_plan.hpp"
#include "gpu/cuda/common/gradient/plan.hpp"
#include "gpu/cuda/common/instances.hpp"
#include "gpu/cuda/sm90/attention_backward/alibi/config.hpp"
#include "gpu/cuda/sm90/attention_backward/config.hpp"
#include "gpu/cuda/sm90/attention_backward/separate_dq/query_tile.cuh"
#include "gpu/cuda/sm90/block_attention_backward/config.hpp"
#include "gpu/cuda/sm90/dense/alibi.hpp"
#include "gpu/cuda/sm90/dense/plan.hpp"
#include "gpu/cuda/sm90/implementations.hpp"
#include "gpu/plan_state.hpp"
#include "op/attention_backward/problem.hpp"

namespace fovea::gpu::sm90::attention_backward {
namespace {

using detail::declined;
namespace listed = block_attention_backward;

constexpr std::string_view kName = "cuda.sm90.attention_backward";

enum Tensor : std::size_t { kQ, kK, kV, kOut, kDout, kDq, kDk, kDv, kTensors };

std::array<RowsDesc, kTensors> tensors_of(const Problem& p) {
  const std::array<RowsDesc, 4> of = dense::forward_tensors(p, p.q_dtype);
  const RowsDesc &q = of[kQ], &k = of[kK];
  return {{q,
           k,
           of[kV],
           of[kOut],
           {"dout", p.q_dtype, p.dout, q.rows, p.heads, q.batch, p.head_dim_v, p.dout_alignment},
           {"dq", p.q_dtype, p.dq, q.rows, p.heads, q.batch, p.head_dim_qk, p.dq_alignment},
           {"dk", p.q_dtype, p.dk, k.rows, p.kv_heads, k.batch, p.head_dim_qk, p.dk_alignment},
           {"dv", p.q_dtype, p.dv, k.rows, p.kv_heads, k.batch, p.head_dim_v, p.dv_alignment}}};
}

/// Declines problems with ALiBi that are left to others.
Result<void> accept_alibi(const Problem& problem) {
  if (problem.has_block_mask()) return declined("alibi_slopes", "slopes", "none beside a block mask");
  if (problem.softcap != 0) return declined("softcap (with alibi_slopes)", detail::number_text(problem.softcap), "none");
  if (dense::has_natural_scores(problem))
    return declined("scale (with alibi_slopes)", detail::number_text(problem.scale), "from 2^-60 to 2^60");
  const std::int64_t widest = std::max(problem.head_dim_qk, problem.head_dim_v);
  if (widest > alibi::kTunings.back().head_dim_qk) return declined("head_dim (with alibi_slopes)", widest, "at most 128");
  return {};
}

Result<void> accept(const Problem& problem) {
  if (Result<void> good = accept_shared(problem); !good) return good;
  // With a sink that takes nearly all of a row, P underflows in f16, but P times delta of dlse does not.
  if (problem.q_dtype == DType::f16 && problem.has_sink && problem.has_dlse) return declined("dlse", "with a sink in f16", "bf16, or none");
  if (problem.has_block_mask()) {
    if (const std::int64_t most = std::max(problem.head_dim_qk, problem.head_dim_v); most > listed::kTunings.back().head_dim_qk)
      return declined("head_dim (of a block mask)", most, "at most 128");
    if (auto reason = decline_block_mask(problem, {kQueryTile, kTunings[0].key_tile})) return *reason;
  }
  if (problem.has_alibi_slopes) {
    if (Result<void> good = accept_alibi(problem); !good) return good;
  }
  return dense::accept_dense(problem, tensors_of(problem));
}

auto launch_of(DType dtype, bool softcap, int tuning) {
  return instance_of<kTunings.size()>(
      dtype, softcap, tuning, [](auto of) { return &launch_differentiate<Config<typename decltype(of)::Element, of.kRow, of.kWith>>; });
}

auto alibi_launch_of(DType dtype, int tuning) {
  return instance_of<alibi::kTunings.size()>(
      dtype, tuning, [](auto of) { return &alibi::launch_with_alibi<alibi::Config<typename decltype(of)::Element, of.kRow>>; });
}

auto listed_launch_of(DType dtype, bool softcap, int tuning) {
  return instance_of<listed::kTunings.size()>(dtype, softcap, tuning, [](auto of) {
    return &listed::launch_listed<listed::Config<typename decltype(of)::Element, of.kRow, of.kWith>>;
  });
}

class State final : public PlanState<Problem, AttentionBackwardArgs> {
 public:
  State(const Problem& problem, Device device, const DeviceProperties& properties) : PlanState(kName, problem, device) {
    tuning_ = tuning_index(problem.head_dim_qk, problem.head_dim_v);
    params_.group = std::min(128, properties.multiprocessors);
    fill_shape(params_, problem, tuning_row().key_tile);
    params_.row_tiles = static_cast<int>(std::max<std::int64_t>(query_tiles_of(problem, kRowTile), 1));
    if (problem.has_block_mask()) {
      params_.leaks = !has_no_rows(problem);
      params_.lists = gradient_lists(problem, {kQueryTile, params_.key_tile}, params_.group, properties.multiprocessors);
    }
    workspace_bytes = place_workspace(params_, nullptr);
  }

  int key_tile() const { return params_.key_tile; }

  std::string tuning() const override {
    std::string text = std::to_string(kQueryTile) + " queries x " + std::to_string(tuning_row().key_tile) + " keys for head dims up to " +
                       std::to_string(tuning_row().head_dim_qk) + "/" + std::to_string(tuning_row().head_dim_v);
    if (tuning_row().separate_dq())
      text += ", dq by a separate kernel with 128 queries x " + std::to_string(tuning_row().dq_key_tile) + " keys";
    if (problem_.has_block_mask()) text += ", of listed tiles";
    if (problem_.has_alibi_slopes) text += ", with ALiBi";
    return text;
  }

 private:
  bool is_empty() const override { return has_no_rows(problem_) && !problem_.has_sink; }

  Result<void> compute(const AttentionBackwardArgs& args, Workspace workspace, Stream stream, bool) const override {
    listed::Params params = params_;
    place_workspace(params, workspace.data);
    if (Result<void> good = fill(params, args); !good) return good;
    if (problem_.has_block_mask() && !has_no_rows(problem_)) return compute_listed(params, stream);
    if (problem_.has_alibi_slopes && !has_no_rows(problem_)) return compute_with_alibi(params, args, stream);
    return compute_dense(params, stream);
  }

  Result<void> compute_dense(const Params& params, Stream stream) const {
    if (has_no_rows(problem_)) return launch_finish(params, problem_.q_dtype, stream);
    if (Result<void> done = launch_prepare(params, problem_.q_dtype, stream); !done) return done;
    if (params.key_tiles > 0) {
      const auto differentiate = launch_of(problem_.q_dtype, params.softcap != 0, tuning_);
      if (Result<void> done = differentiate(params, device_.ordinal, stream); !done) return done;
    }
    return params.leaks || params.dsink != nullptr ? launch_finish(params, problem_.q_dtype, stream) : Result<void>{};
  }

  Result<void> compute_with_alibi(const Params& params, const AttentionBackwardArgs& args, Stream stream) const {
    if (Result<void> done = launch_prepare(params, problem_.q_dtype, stream); !done) return done;
    const alibi::Params with{params, {problem_, args.forward}, static_cast<float>(1 / problem_.scale)};
    if (params.key_tiles > 0) {
      if (Result<void> done = alibi_launch_of(problem_.q_dtype, tuning_)(with, device_.ordinal, stream); !done) return done;
    }
    return params.leaks || params.dsink != nullptr ? alibi::launch_finish(with, problem_.q_dtype, stream) : Result<void>{};
  }

  Result<void> compute_listed(const listed::Params& params, Stream stream) const {
    const DType dtype = problem_.q_dtype;
    if (Result<void> done = listed::launch_prepare(params, dtype, stream); !done) return done;
    if (params.key_tiles > 0) {
      const auto differentiate = listed_launch_of(dtype, params.softcap != 0, tuning_);
      if (Result<void> done = differentiate(params, device_.ordinal, stream); !done) return done;
    }
    return listed::launch_finish(params, dtype, stream);
  }

  const Tuning& tuning_row() const { return kTunings[static_cast<std::size_t>(tuning_)]; }

  /// Returns the bytes of the workspace.
  std::size_t place_workspace(listed::Params& params, void* base) const {
    const std::int64_t cells = std::int64_t{params.heads} * params.query_tiles;
    detail::WorkspaceArena arena = arena_at(base);
    place_shared(arena, params, problem_.has_sink);
    if (!tuning_row().separate_dq()) {
      params.dq_sums = arena.take<float>(cells * kQueryTile * tuning_row().head_dim_qk);
      params.dq_semaphore = arena.take<int>(cells);
    }
    params.ticket = arena.take<int>(1);
    if (problem_.has_block_mask()) place_lists(arena, params.lists, problem_);
    return arena.bytes();
  }

  /// Sets the fields that a run knows.
  Result<void> fill(listed::Params& params, const AttentionBackwardArgs& args) const {
    const std::array<RowsDesc, kTensors> tensors = tensors_of(problem_);
    const AttentionArgs& forward = args.forward;
    const auto encode = [&](ClippedRows& to, Tensor tensor, const void* data, int tile) {
      // A tensor without rows has no memory.
      const void* some = tensors[tensor].rows > 0 ? data : problem_.total_q > 0 ? forward.q : forward.k;
      to = rows_of(tensors[tensor], some, tile);
      return encode_rows(to, tensors[tensor]);
    };
    if (params.key_tiles > 0) {
      for (const auto& [to, tensor, data, tile] : {std::tuple{&params.q, kQ, forward.q, kQueryTile},
                                                   {&params.k, kK, forward.k, params.key_tile},
                                                   {&params.v, kV, forward.v, params.key_tile},
                                                   {&params.dout, kDout, args.dout, kQueryTile},
                                                   {&params.dk, kDk, static_cast<const void*>(args.dk), kWarpgroupKeys},
                                                   {&params.dv, kDv, static_cast<const void*>(args.dv), kWarpgroupKeys},
                                                   {&params.dq, kDq, static_cast<const void*>(args.dq), kQueryTile},
                                                   {&params.dq_k, kK, forward.k, tuning_row().dq_key_tile},
                                                   {&params.dq_v, kV, forward.v, tuning_row().dq_key_tile}}) {
        if (tile == 0) continue;  // no separate kernel of dq
        if (Result<void> good = encode(*to, tensor, data, tile); !good) return good;
      }
    }
    params.dout.data = args.dout;
    params.dout.strides = problem_.dout;
    params.out = {forward.out, problem_.out};
    params.dq.data = args.dq;
    params.dq.strides = problem_.dq;
    fill_run(params, problem_, args);
    if (problem_.has_block_mask()) fill_lists_of(params.lists, problem_, forward);
    return {};
  }

  int tuning_ = 0;
  listed::Params params_{};
};

detail::PlanResult<AttentionBackwardArgs> plan(const Problem& problem, Device device) {
  if (auto reason = decline_device(device, kCapability, kCapability)) return *reason;
  if (Result<void> good = accept(problem); !good) return good.error();
  auto state = std::make_shared<State>(problem, device, *properties(device));
  const std::int64_t tiles = most_tiles(problem, state->key_tile());
  if (tiles >= kCountLimit) return declined("q.shape, k.shape (tiles)", tiles, "below 2^30");
  return std::shared_ptr<const detail::PlanState<AttentionBackwardArgs>>(std::move(state));
}

constexpr detail::Implementation<detail::AttentionBackward> kRow{
    kName,
    "f16, bf16; head dims that are multiples of 8 up to 256; rows aligned to 16 bytes",
    detail::handles<detail::AttentionBackward>("ragged", "full_block_indices", "partial_block_indices", "mask.left", "mask.right",
                                               "mask.anchor (top_left)", "softcap", "sink", "dlse", "alibi_slopes",
                                               "options.batch_invariant", "options.deterministic"),
    Backend::cuda,
    unavailable<kCapability, kCapability>,
    plan};

}  // namespace
}  // namespace fovea::gpu::sm90::attention_backward

namespace fovea::gpu::sm90 {

detail::Implementations<detail::AttentionBackward> implementations(detail::AttentionBackward) { return {&attention_backward::kRow, 1}; }

}  // namespace fovea::gpu::sm90
