// SPDX-License-Identifier: Apache-2.0
/// The plan of a launch, for dense and token-sparse attention: the kernel, its workspace, its tensor maps.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "gpu/cuda/sm90/latent_attention/params.hpp"
#include "gpu/plan_state.hpp"
#include "gpu/tensor_map.hpp"
#include "op/common/attention_core.hpp"
#include "op/common/checks.hpp"
#include "op/common/division.hpp"
#include "op/common/latent_cache.hpp"
#include "plan/implementation.hpp"

namespace fovea::gpu::sm90::latent {

inline constexpr int kSequenceOverhead = 2;  // pairs of key tiles; on an H200 anything up to 3 does as well, more costs time

/// A planned launch. `params` holds all that is known before a run, which adds the pointers.
struct LaunchPlan {
  Device device{};
  Call call{};
  Tuning tuning{};
  int multiprocessors = 0;
  bool ragged = false;
  Params params{};

  /// A sequence has `tokens` query tokens, and the batch `sequences`.
  LaunchPlan(const detail::AttentionCore& core, Device device, const Call& call, std::int64_t sequences, std::int64_t tokens);

  /// For sequences that all have `keys` keys, or list as many: the schedule may be known when planning.
  void fix_schedule(std::int64_t keys);
  /// Launches the schedule kernel, unless the schedule is known.
  Result<void> prepare(const Params& params, Stream stream) const;

  std::size_t workspace_bytes() const;
  /// A copy of `params` with its pointers into the workspace.
  Params params_in(Workspace workspace) const;
  Result<void> run(const Params& params, Stream stream, bool prepared) const;
  std::string explain() const;
  /// Encodes the tensor maps of queries and results where their layouts allow TMA boxes.
  Result<void> encode_heads_of(Params& filled, const detail::AttentionCore& core) const;
};

/// Bytes that divide the strides of the cache's blocks and tokens. Tokens are addressed by 32 bits of them, so a large unit reaches far.
std::int64_t place_unit(const detail::LatentCacheView& cache);
/// How kernels read `cache` token by token. A run adds the pointers.
RowCache row_cache(const detail::LatentCacheView& cache, DType q_dtype, std::int64_t unit);
Row row_kind_of(const detail::LatentCacheView& cache, DType q_dtype);

/// A call without what only dense attention knows. `rows`: of all its caches.
Call call_of(const detail::AttentionCore& core, Row rows, std::int64_t tokens);

/// Whether the copy engine takes these strides, in elements of `bytes` bytes.
bool tma_reaches(const std::array<std::int64_t, 3>& strides, std::int64_t bytes);

Result<void> encode(CUtensorMap& map, const void* base, const TensorMapDesc& desc);

/// Reasons to decline.
Result<void> accept_core(const detail::AttentionCore& core, std::int64_t sequences, std::int64_t rows);
Result<void> accept_cache(std::string_view name, const detail::LatentCacheView& cache, Load load, std::int64_t unit);

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
  virtual Result<void> fill(Params& params, const Args& args) const = 0;

  LaunchPlan launch_;

 private:
  /// Rows may belong to no sequence. Then they are not written.
  bool is_empty() const final { return problem_.total_q == 0 || problem_.batch == 0; }
  Result<void> schedule(const Args& args, Workspace workspace, Stream stream) const final {
    return with_params(args, workspace, [&](const Params& params) { return launch_.prepare(params, stream); });
  }
  Result<void> compute(const Args& args, Workspace workspace, Stream stream, bool prepared) const final {
    return with_params(args, workspace, [&](const Params& params) { return launch_.run(params, stream, prepared); });
  }

  template <class Run>
  Result<void> with_params(const Args& args, Workspace workspace, Run&& run) const {
    Params params = launch_.params_in(workspace);
    params.q = args.q;
    params.out = args.out;
    params.lse = problem_.has_lse ? args.lse : nullptr;
    if (Result<void> good = fill(params, args); !good) return good;
    if (Result<void> good = launch_.encode_heads_of(params, problem_); !good) return good;
    return run(params);
  }
};

}  // namespace fovea::gpu::sm90::latent
