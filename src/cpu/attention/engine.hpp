// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/attention/schedule.hpp"

namespace fovea::cpu {

/// Computes a call whose arguments have been checked. Allocates nothing.
void attend(const Setup& setup, const Call& call, std::byte* workspace);

}  // namespace fovea::cpu
