// SPDX-License-Identifier: Apache-2.0
/// The plan of a CUDA entry.
#pragma once

#include "gpu/device_plan.hpp"
#include "gpu/runtime.hpp"

namespace fovea::gpu {

template <class Problem, class Args>
class PlanState : public DevicePlan<Problem, Args, ScopedDevice> {
 protected:
  using DevicePlan<Problem, Args, ScopedDevice>::DevicePlan;
  using DevicePlan<Problem, Args, ScopedDevice>::problem_;
  using DevicePlan<Problem, Args, ScopedDevice>::device_;
};

}  // namespace fovea::gpu
