// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/attention.hpp"
#include "op/common/attention_core.hpp"
#include "op/common/checks.hpp"
#include "op/common/extent.hpp"

namespace fovea::detail {

/// A dense attention that makes sense; only validate() makes one.
struct AttentionProblem : AttentionCore {
  bool ragged = false;
  std::int64_t total_k = 0;  ///< rows of k and v over the whole batch
  RowStrides k{}, v{};
  std::optional<ScaleDesc> q_scale{};
  Extents extents{};
};

/// The only maker of an AttentionProblem.
Result<AttentionProblem> validate(const AttentionDesc& desc, const PlanOptions& options);

struct DenseTensors {
  const NamedTensor &q, &k, &v, &out;
};
using CheckDTypes = void (*)(Checker& check, const DenseTensors& tensors);

/// The same with other dtypes, for operations that are dense attention in all else.
Result<AttentionProblem> validate_dense(const AttentionDesc& desc, const PlanOptions& options, CheckDTypes check_dtypes);

/// The bounds of a ragged batch make sense.
void check_ragged(Checker& check, const RaggedDesc& ragged);

/// Pointers of run(): present where the description asks for them, aligned, and outputs apart from all else. Looks at no data.
Result<void> check_args(const AttentionProblem& problem, const AttentionArgs& args);

/// Checks that need lengths which the host can read: cu_seqlens within the bounds of the plan.
Result<void> check_lengths(const AttentionProblem& problem, const AttentionArgs& args);

}  // namespace fovea::detail
