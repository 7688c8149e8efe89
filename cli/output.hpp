// SPDX-License-Identifier: Apache-2.0
/// How the program writes: complaints that any terminal shows, and results that are known to have arrived.
#pragma once

#include <string>
#include <string_view>

namespace fovea::cli {

/// Bytes that are not UTF-8, and control characters other than line ends, become "\xNN".
std::string printable(std::string_view text);

/// Writes a line to standard error.
void complain(std::string_view text);

/// Returns `status` if all output reached standard output. Otherwise complains, or ends the process as a broken pipe does.
/// `error`: the number of an error that a write had before.
int finish_output(int status, int error = 0);

}  // namespace fovea::cli
