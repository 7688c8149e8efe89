// SPDX-License-Identifier: Apache-2.0
#include "program.hpp"

#include <fmt/format.h>

#include <exception>
#include <string>

#include "commands.hpp"
#include "fovea/info.hpp"

namespace fovea::cli {
namespace {

/// The error of the first argument, where a command must stand, or nothing.
std::string unknown_command(const CLI::App& program, int argc, char** argv) {
  if (argc < 2 || *argv[1] == '-') return {};
  std::string names;
  for (const CLI::App* command : program.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name() == argv[1]) return {};
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  return fmt::format("command: got {}, want {}", argv[1], names);
}

}  // namespace

int run_program(int argc, char** argv) {
  CLI::App program("Fovea: attention operations. Says what this machine can run, proves that it is right, and measures it.", "fovea");
  program.footer(
      "Exit status: 0 when all is well, 1 when a check failed, 2 when the call was wrong or nothing accepts the problem.\n"
      "`fovea COMMAND --help` tells more about a command.");
  program.set_version_flag("--version", std::string(version()));
  program.require_subcommand(1);
  int status = kOk;
  add_info(program, status);
  add_check(program, status);
  add_bench(program, status);
  add_explain(program, status);
  const std::string unknown = unknown_command(program, argc, argv);
  if (!unknown.empty()) {
    fmt::print(stderr, "fovea: {}\n", unknown);
    return kUsage;
  }
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return program.exit(error) == 0 ? kOk : kUsage;
  } catch (const std::exception& error) {
    fmt::print(stderr, "fovea: {}\n", error.what());
    return kUsage;
  }
  return status;
}

}  // namespace fovea::cli
