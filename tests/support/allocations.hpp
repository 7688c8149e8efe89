// SPDX-License-Identifier: Apache-2.0
/// Counts the calls of operator new in this process. A test that links `fovea_allocations` gets the counting operators.
#pragma once

#include <cstdint>

namespace fovea::check {

/// How often operator new has been called so far, by any thread.
std::int64_t allocations();

}  // namespace fovea::check
