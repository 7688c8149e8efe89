// SPDX-License-Identifier: Apache-2.0
/// The plan of a launch, for dense and token-sparse attention: the kernel, its parameters, its workspace.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "gpu/cuda/portable/latent_attention/config.hpp"
#include "gpu/plan_state.hpp"
#include "op/common/attention_core.hpp"
#include "op/common/latent_cache.hpp"

namespace fovea::gpu::portable::latent_attention {

/// A kernel and its launch.
struct Entry {
  int row_tile = 0, key_tile = 0;
  Shape (*shape)(int, int, int) = nullptr;
  CudaStatus (*launch)(const Params&, int, Stream) = nullptr;
};

/// A planned launch. `params` holds all that is known before a run, which adds the pointers.
struct LaunchPlan {
  Device device{};
  Entry entry{};
  Params params{};
  int row_tiles = 0;  ///< query tiles of a kv head, at most

  /// The batch has `sequences` of up to `tokens` query tokens each. `coded_row`: as in Params.
  LaunchPlan(const detail::AttentionCore& core, Device device, std::int64_t sequences, std::int64_t tokens, int coded_row);

  bool has_partials() const { return !params.whole && params.splits > 1; }
  std::size_t workspace_bytes() const;
  /// A copy of `params` with its pointers into the workspace.
  Params params_in(Workspace workspace) const;
  Result<void> run(const Params& params, Stream stream) const;
  std::string explain() const;
};

RowKind kind_of(const detail::LatentCacheView& cache, DType q_dtype);
/// How kernels read `cache`. A run adds the pointers.
RowCache row_cache(const detail::LatentCacheView& cache, DType q_dtype);

/// Params::coded_row of a call with rows of one format, or of two.
constexpr int coded_row_of(const RowFormat& main, const RowFormat& extra) {
  const bool plain = main.kind == RowKind::plain || extra.kind == RowKind::plain;
  const bool coded = main.kind != RowKind::plain || extra.kind != RowKind::plain;
  const bool packed = main.kind != RowKind::e4m3 || extra.kind != RowKind::e4m3;
  return !coded ? 0 : plain ? kMixedRow : packed ? kPackedRow : kE4m3Row;
}

/// Reasons to decline.
Result<void> accept_core(const detail::AttentionCore& core, const LaunchPlan& launch);
Result<void> accept_cache(std::string_view name, const detail::LatentCacheView& cache, int coded_row);

/// A plan of dense or of token-sparse attention.
template <class Problem, class Args>
class LatentPlan : public PlanState<Problem, Args> {
 public:
  std::string tuning() const final { return launch_.explain(); }

 protected:
  using PlanState<Problem, Args>::problem_;

  LatentPlan(std::string_view name, const Problem& problem, LaunchPlan launch)
      : PlanState<Problem, Args>(name, problem, launch.device), launch_(std::move(launch)) {
    if (!is_empty()) this->workspace_bytes = launch_.workspace_bytes();
  }

  /// Adds the pointers that only one of the two has.
  virtual void fill(Params& params, const Args& args) const = 0;

 private:
  bool is_empty() const final { return problem_.total_q == 0 || problem_.batch == 0; }
  Result<void> compute(const Args& args, Workspace workspace, Stream stream, bool) const final {
    Params params = launch_.params_in(workspace);
    params.q = args.q;
    params.out = args.out;
    params.lse = problem_.has_lse ? args.lse : nullptr;
    fill(params, args);
    return launch_.run(params, stream);
  }

  LaunchPlan launch_;
};

}  // namespace fovea::gpu::portable::latent_attention
