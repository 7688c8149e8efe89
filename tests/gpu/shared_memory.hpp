// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <driver_types.h>

namespace fovea::check {

/// Fills the shared memory of all multiprocessors with NaN, and waits for it.
cudaError_t poison_shared_memory(int ordinal);

}  // namespace fovea::check
