// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "fovea/merge.hpp"
#include "fovea/tensor.hpp"
#include "op/common/extent.hpp"
#include "op/common/option.hpp"

namespace fovea::detail {

struct MergeStatesProblem {
  struct Strides {
    std::int64_t out_row = 0, out_head = 0, lse_row = 0, lse_head = 0;
    std::int32_t alignment = 0;  ///< bytes, of the pointer to out
    Extent out_extent{}, lse_extent{};
  };
  DType dtype{};
  std::int64_t total_q = 0, heads = 0, head_dim_v = 0;
  std::vector<Strides> parts{};
  Strides out{};
  bool has_lse = false;
};

inline constexpr std::array kMergeStatesOptions{option::kLse<MergeStatesProblem>};

/// The only maker of a MergeStatesProblem.
Result<MergeStatesProblem> validate(const MergeStatesDesc& desc, const PlanOptions& options);

/// Pointers of run(): as many parts as planned, present and aligned.
Result<void> check_args(const MergeStatesProblem& problem, const MergeStatesArgs& args);

}  // namespace fovea::detail
