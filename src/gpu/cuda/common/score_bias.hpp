// SPDX-License-Identifier: Apache-2.0
/// ALiBi, an additive bias and dropout as parameters of kernels.
#pragma once

#include <cstdint>

#include "op/common/dropout.hpp"
#include "op/common/strides.hpp"

namespace fovea::gpu {

struct ScoreBiasParams {
  const float* slopes = nullptr;  ///< of ALiBi, or null
  std::int64_t slope_batch = 0, slope_head = 0;
  const void* bias = nullptr;  ///< or null
  detail::BiasStrides strides{};
  bool in_pairs = false;                        ///< one load may take two neighbours of a row, the first at an even key
  const std::int64_t* dropout_state = nullptr;  ///< null: no weight is dropped
  std::uint32_t last_dropped = 0;               ///< the largest word whose upper 16 bits drop a key
  float keep_factor = 1;

  constexpr bool adds() const { return slopes != nullptr || bias != nullptr; }

  ScoreBiasParams() = default;
  /// `Problem`: of dense attention or its gradient. `args` has the pointers of the forward pass.
  template <class Problem>
  ScoreBiasParams(const Problem& p, const auto& args)
      : slopes(p.has_alibi_slopes ? args.alibi_slopes : nullptr),
        slope_batch(p.alibi_slopes.batch_stride),
        slope_head(p.alibi_slopes.head_stride),
        bias(p.has_bias ? args.bias : nullptr),
        strides(p.bias),
        in_pairs(p.bias.key == 1 && p.bias_alignment % 4 == 0 && (p.bias.batch | p.bias.head | p.bias.row) % 2 == 0) {
    const std::uint32_t threshold = detail::drop_threshold(p.dropout_p);
    if (p.dropout_p == 0) return;
    keep_factor = detail::keep_factor(p.dropout_p);
    if (threshold == 0) return;  // no number of 16 bits is below it
    dropout_state = args.dropout_state;
    last_dropped = (threshold << 16) - 1;
  }
};

}  // namespace fovea::gpu
