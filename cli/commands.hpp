// SPDX-License-Identifier: Apache-2.0
/// The subcommands. Each adds itself to the program and stores the exit status of its run.
#pragma once

#include <CLI/CLI.hpp>

namespace fovea::cli {

/// The exit statuses of the program, as --help lists them.
enum Status : int { kOk = 0, kFailed = 1, kUsage = 2 };

void add_info(CLI::App& program, int& status);
void add_check(CLI::App& program, int& status);
void add_bench(CLI::App& program, int& status);
void add_explain(CLI::App& program, int& status);

}  // namespace fovea::cli
