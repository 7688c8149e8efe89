// SPDX-License-Identifier: Apache-2.0
/// A kernel that starts beside the one before it, which has waited for all kernels before that.
#pragma once

#include "gpu/cuda/common/programmatic_launch.cuh"
#include "gpu/cuda/portable/paged_attention/params.hpp"

namespace fovea::gpu::portable::paged_attention {

/// What those kernels have written is complete. The fence makes it visible. Nothing of the call is read before.
__device__ __forceinline__ void see_earlier_kernels(const Params& params) {
  if (params.co_launched) __threadfence();
}

/// At the end of a CTA. Those of the first part end after the kernel before, so that whatever waits for this kernel waits for both. They
/// are the last to start, and others do not wait: they would keep their multiprocessors from the next ones.
__device__ __forceinline__ void end_after_previous(const Params& params, int part) {
  if (params.co_launched && part == 0) grid_dependency_wait();
}

}  // namespace fovea::gpu::portable::paged_attention
