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
  std::int32_t bias_alignment = 0;  ///< of run()'s pointer, in bytes
  Extents extents{};
  /// Lists of a block mask, with counts and bits where there are indices.
  std::optional<TensorDesc> full_block_indices{}, partial_block_indices{};
  TensorDesc full_block_counts{}, partial_block_counts{}, partial_block_bits{};
  std::int64_t block_q = 0, block_k = 0;

  bool has_block_mask() const { return full_block_indices || partial_block_indices; }
};

/// The only maker of an AttentionProblem.
Result<AttentionProblem> validate(const AttentionDesc& desc, const PlanOptions& options);

/// A bias or its gradient: [batch, head, seq_q, seq_k] of the forward pass, of which any extent may be 1.
void check_bias_tensor(Checker& check, std::string_view name, const TensorDesc& desc, const AttentionProblem& problem, bool is_output);

/// Its strides: 0 along extents of 1.
BiasStrides bias_strides(const TensorDesc& desc);

struct DenseTensors {
  const NamedTensor &q, &k, &v, &out;
};
using CheckDTypes = void (*)(Checker& check, const DenseTensors& tensors);

/// The same with other dtypes, for operations that are dense attention in all else.
Result<AttentionProblem> validate_dense(const AttentionDesc& desc, const PlanOptions& options, CheckDTypes check_dtypes);

/// The lists of a block mask fit the problem, whose shapes and lists are set. Sets its counts, bits and block sizes.
void check_block_mask(Checker& check, const AttentionDesc& desc, AttentionProblem& problem);

/// The bounds of a ragged batch make sense.
void check_ragged(Checker& check, const RaggedDesc& ragged);

/// Pointers of run(): present where the description asks for them, aligned, and outputs apart from all else. Looks at no data.
Result<void> check_args(const AttentionProblem& problem, const AttentionArgs& args);

/// Checks that need lengths which the host can read: cu_seqlens within the bounds of the plan.
Result<void> check_lengths(const AttentionProblem& problem, const AttentionArgs& args);

}  // namespace fovea::detail
