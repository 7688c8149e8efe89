// SPDX-License-Identifier: Apache-2.0
/// The shared memory of a CTA.
#pragma once

#include <cstddef>

#include "gpu/cuda/portable/attention_backward/config.hpp"
#include "gpu/cuda/portable/attention_backward/work.cuh"

namespace fovea::gpu::portable::attention_backward {

/// Of queries that pass by.
template <int kColumns>
struct alignas(16) ColumnStats {
  float minus_lse[kColumns], delta[kColumns];
  int natural;
};

/// q and dout, k and v: rows stay, columns pass by. All are SwizzledRows.
template <class Config>
struct Storage {
  alignas(128) std::byte rows_qk[Config::kRows * 2 * Config::kHeadDimQk];
  alignas(128) std::byte rows_v[Config::kRows * 2 * Config::kHeadDimV];
  alignas(128) std::byte columns_qk[Config::kStages][Config::kColumns * 2 * Config::kHeadDimQk];
  alignas(128) std::byte columns_v[Config::kStages][Config::kColumns * 2 * Config::kHeadDimV];
  alignas(128) ColumnStats<Config::kColumns> stats[Config::kStages];
  Work work;
};

}  // namespace fovea::gpu::portable::attention_backward
