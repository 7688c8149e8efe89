// SPDX-License-Identifier: Apache-2.0
/// The plan of a HIP entry.
#pragma once

#include "gpu/device_plan.hpp"
#include "gpu/hip/runtime.hpp"

namespace fovea::gpu::hip {

template <class Problem, class Args>
class PlanState : public DevicePlan<Problem, Args, ScopedDevice> {
 protected:
  using DevicePlan<Problem, Args, ScopedDevice>::DevicePlan;
  using DevicePlan<Problem, Args, ScopedDevice>::problem_;
  using DevicePlan<Problem, Args, ScopedDevice>::device_;
};

/// Appended to what each entry accepts.
#define FOVEA_HIP_STATUS "; emulated, not run on AMD hardware"

}  // namespace fovea::gpu::hip
