// SPDX-License-Identifier: Apache-2.0
#include "program.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <sstream>
#include <string>
#include <system_error>

#include "commands.hpp"
#include "fovea/info.hpp"
#include "output.hpp"

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

/// Prints what --help and --version ask for, or the error.
int exit_status(const CLI::App& program, const CLI::ParseError& error) {
  std::ostringstream text, complaint;
  const bool good = program.exit(error, text, complaint) == 0;
  if (!complaint.str().empty()) complain(complaint.str());
  fmt::print("{}", text.str());
  return good ? kOk : kUsage;
}

int run_command(int argc, char** argv) {
  CLI::App program("Fovea: attention operations. Says what this machine can run, proves that it is right, and measures it.", "fovea");
  program.footer(
      "Exit status: 0 when all is well, 1 when a check failed, 2 when the call was wrong, nothing accepts the problem or output was lost.\n"
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
    complain("fovea: " + unknown);
    return kUsage;
  }
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return exit_status(program, error);
  }
  return status;
}

}  // namespace

int run_program(int argc, char** argv) {
  try {
    return finish_output(run_command(argc, argv));
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) != 0) return finish_output(kUsage, error.code().value());
    complain(fmt::format("fovea: {}", error.what()));
  } catch (const std::exception& error) {
    complain(fmt::format("fovea: {}", error.what()));
  }
  return finish_output(kUsage);
}

}  // namespace fovea::cli
