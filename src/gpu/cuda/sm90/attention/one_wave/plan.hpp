// SPDX-License-Identifier: Apache-2.0
/// Calls of one wave: which they are, and their launch.
#pragma once

#include <optional>
#include <string>

#include "fovea/attention.hpp"
#include "gpu/cuda/sm90/attention/one_wave/config.hpp"
#include "op/attention/problem.hpp"

namespace fovea::gpu::sm90::one_wave {

struct Call {
  int index = 0;  ///< row of tuning.hpp
  dim3 grid{};
  Params params{};

  std::string tuning() const;
  Result<void> run(const detail::AttentionProblem& problem, const AttentionArgs& args, int ordinal, Stream stream) const;
};

/// Nothing where the call has more CTAs than `multiprocessors`, or more keys than a cluster takes.
std::optional<Call> call_of(const detail::AttentionProblem& problem, int multiprocessors);

}  // namespace fovea::gpu::sm90::one_wave
