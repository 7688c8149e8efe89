// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "fovea/result.hpp"

namespace fovea::detail {

/// The error of a call that every implementation declines. Its message begins with what the caller can change most easily: the call itself,
/// then the machine, then the kind of device. Each reason given there is a change that another implementation waits for. The declines
/// follow in this order too.
Error refusal_of(std::vector<Decline> declines);

}  // namespace fovea::detail
