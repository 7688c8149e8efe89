// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "fovea/plan.hpp"
#include "fovea/tensor.hpp"

namespace fovea {

/// Merges partial results, attention over disjoint sets of keys: `lse = log sum_i exp(lse_i)`, `out = sum_i exp(lse_i - lse) out_i`.
///
/// Each part: out [total_q, head, dv] in f32, f16 or bf16, lse f32 seen as [total_q, head] by its strides (a [head, total_q]
/// tensor is passed with its strides exchanged). Parts and out have one dtype.
/// An lse of +inf, -inf or NaN marks an empty part, whose out never reaches the result. If all are empty, the result is 0 and -inf. In
/// place (out and lse being those of a part) is allowed. 1 to 2^20 parts, and any number of heads.
struct MergeStatesDesc {
  static constexpr std::size_t kMostParts = std::size_t{1} << 20;

  struct Part {
    TensorDesc out{}, lse{};
  };
  std::vector<Part> parts{};
  TensorDesc out{};
  std::optional<TensorDesc> lse{};
};

struct MergeStatesArgs {
  struct Part {
    const void* out = nullptr;
    const float* lse = nullptr;
  };
  std::span<const Part> parts{};
  void* out = nullptr;
  float* lse = nullptr;
};

using MergeStatesPlan = Plan<MergeStatesArgs>;

Result<MergeStatesPlan> plan_merge_states(const MergeStatesDesc& desc, Device device = {}, const PlanOptions& options = {});

}  // namespace fovea
