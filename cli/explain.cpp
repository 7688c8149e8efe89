// SPDX-License-Identifier: Apache-2.0
/// `fovea explain`: which implementation a problem gets, and why the others declined.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "commands.hpp"
#include "fovea/info.hpp"
#include "output.hpp"
#include "problems.hpp"
#include "values.hpp"

namespace fovea::cli {
namespace {

struct Options {
  std::string operation = "attention", implementation, device = "cpu";
  std::shared_ptr<ProblemSize> size{};
  bool batch_invariant = false, exact_rows = false, deterministic = false;
};

/// The device that was named. One that was looked for and not found is said to be so, and a build without kernels for its kind.
std::string where(const std::string& name, Device device) {
  if (device.capability == 0) return name;
  const bool not_found = name == name_of(device.backend);
  const std::vector<ImplementationInfo> all = implementations();
  const bool has_kernels = std::any_of(all.begin(), all.end(), [&](const auto& row) { return row.backend == device.backend; });
  return fmt::format("{}as on a device of {}{}", not_found ? fmt::format("no {} device was found; ", name) : "", described(device),
                     has_kernels ? "" : fmt::format("; this build has no kernels for {}", name_of(device.backend)));
}

int explain(const CLI::App& command, const Options& options) {
  const auto& operations = explained_operations();
  const auto found = std::find_if(operations.begin(), operations.end(), [&](const auto& row) { return row.name == options.operation; });
  if (const std::string misplaced = misplaced_options(command, *found, *options.size); !misplaced.empty()) {
    complain("fovea explain: " + misplaced);
    return kUsage;
  }
  const PlanOptions plan{.implementation = options.implementation,
                         .batch_invariant = options.batch_invariant,
                         .exact_rows = options.exact_rows,
                         .deterministic = options.deterministic};
  const Device device = device_of(options.device);
  fmt::print("problem: {}\ndevice: {}\n", described(*options.size, *found), where(options.device, device));
  const Explanation explanation = found->explain(*options.size, device, plan);
  if (!explanation) {
    complain(to_string(explanation.error()));
    return kUsage;
  }
  fmt::print("{}", *explanation);
  return kOk;
}

/// The names of the operations, a few on each line.
std::string operation_lines() {
  constexpr std::size_t kWidth = 78;
  std::string text;
  std::size_t used = kWidth;
  for (const std::string& name : operation_names()) {
    const bool fits = used + 2 + name.size() <= kWidth;
    text += fits ? ", " + name : (text.empty() ? "\n  " : ",\n  ") + name;
    used = fits ? used + 2 + name.size() : 2 + name.size();
  }
  return text;
}

}  // namespace

void add_explain(CLI::App& program, int& status) {
  auto o = std::make_shared<Options>();
  CLI::App* command =
      program.add_subcommand("explain", "Which implementation a described problem gets, with which tuning, and who declined");
  command->add_option("--operation", o->operation, "What is to be computed, of the names below")
      ->check(one_of(operation_names()))
      ->option_text("NAME [attention]");
  o->size = add_problem_options(*command);
  command->add_option("--device", o->device, "Where; one that is not here by its compute capability or target")
      ->check(device_name())
      ->option_text("cpu|cuda|cuda:N|hip|hip:N|smNN|gfx90a|gfx942 [cpu]");
  command->add_flag("--batch-invariant", o->batch_invariant, "Rows independent of the rest of the batch");
  command->add_flag("--exact-rows", o->exact_rows, "Rows with the same bits in dense, ragged and paged attention");
  command->add_flag("--deterministic", o->deterministic, "Gradients with the same bits from run to run");
  command->add_option("--implementation", o->implementation, "Force one by name");
  command->footer("Operations:" + operation_lines() +
                  "\nExit status 2 when the description is wrong or nothing accepts it; the message says why.");
  command->callback([o, command, &status] { status = explain(*command, *o); });
}

}  // namespace fovea::cli
