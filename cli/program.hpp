// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fovea::cli {

/// All of the fovea program: from its arguments, the first of them its name, to its exit status.
int run_program(int argc, char** argv);

}  // namespace fovea::cli
