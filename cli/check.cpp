// SPDX-License-Identifier: Apache-2.0
/// `fovea check`: the conformance table on this machine.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "commands.hpp"
#include "fovea/info.hpp"
#include "output.hpp"
#include "problems.hpp"
#include "run_case.hpp"
#include "table.hpp"
#include "values.hpp"

namespace fovea::cli {
namespace {

using check::AnyCase;
using check::Tier;

struct Options {
  std::string operation, implementation, name;
  bool quick = false, verbose = false, list = false;
};

struct Tally {
  int passed = 0, failed = 0, declined = 0;
  double worst = 0;  ///< error / tolerance
};

bool wanted(const AnyCase& entry, const Options& options) {
  if (!options.name.empty()) return entry.name.find(options.name) != std::string::npos;
  return entry.tier <= (options.quick ? Tier::quick : Tier::full);
}

std::vector<ImplementationInfo> wanted_implementations(const Options& options) {
  std::vector<ImplementationInfo> rows;
  for (ImplementationInfo& row : implementations()) {
    const bool named = options.implementation.empty() || row.name.find(options.implementation) != std::string::npos;
    const bool of_operation = options.operation.empty() || row.operation == options.operation;
    if (row.available && named && of_operation) rows.push_back(std::move(row));
  }
  return rows;
}

void run(const AnyCase& entry, const std::vector<ImplementationInfo>& rows, const Options& options,
         std::map<std::string_view, Tally>& tallies) {
  const std::unique_ptr<check::Trial> trial = entry.bind();
  for (const ImplementationInfo& row : rows) {
    if (row.operation != entry.operation) continue;
    const check::Report report = check::run_case(*trial, row.name);
    Tally& tally = tallies[row.name];
    tally.passed += report.status == check::Status::passed ? 1 : 0;
    tally.failed += report.status == check::Status::failed ? 1 : 0;
    tally.declined += report.status == check::Status::declined ? 1 : 0;
    tally.worst = std::max(tally.worst, report.worst);
    if (report.status == check::Status::failed) {
      fmt::print("FAILED {} on {}\n  {}\n  {}\n", entry.name, row.name, report.message, check::reproduce(entry.name, row.name));
    } else if (options.verbose) {
      const bool passed = report.status == check::Status::passed;
      fmt::print("{} {} on {}{}\n", passed ? "passed" : "declined", entry.name, row.name,
                 passed ? (report.note.empty() ? "" : ": " + report.note) : ": " + report.message);
    }
  }
}

int check_all(const Options& options) {
  const std::vector<ImplementationInfo> rows = wanted_implementations(options);
  std::vector<const AnyCase*> cases;
  for (const AnyCase& entry : check::all_cases()) {
    const auto applies = [&](const ImplementationInfo& row) { return row.operation == entry.operation; };
    if (wanted(entry, options) && std::any_of(rows.begin(), rows.end(), applies)) cases.push_back(&entry);
  }
  if (rows.empty() || cases.empty()) {
    complain(fmt::format("fovea check: no {} here matches; see `fovea info` and `fovea check --list`",
                         rows.empty() ? "implementation" : "case"));
    return kUsage;
  }
  if (options.list) {
    for (const AnyCase* entry : cases) fmt::print("{}\n", entry->name);
    return kOk;
  }
  std::map<std::string_view, Tally> tallies;
  {
    Progress progress;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      progress.show(fmt::format("{} of {}: {}", i + 1, cases.size(), cases[i]->name));
      run(*cases[i], rows, options, tallies);
    }
  }
  Table table({{"implementation"},
               {"passed", Align::right},
               {"failed", Align::right},
               {"declined", Align::right},
               {"worst error / tolerance", Align::right}});
  int failed = 0, judged = 0;
  for (const ImplementationInfo& row : rows) {
    const auto found = tallies.find(row.name);
    if (found == tallies.end()) continue;
    const Tally& tally = found->second;
    failed += tally.failed;
    judged += tally.passed + tally.failed;
    table.add({std::string(row.name), fmt::to_string(tally.passed), fmt::to_string(tally.failed), fmt::to_string(tally.declined),
               fmt::format("{:.2f}", tally.worst)});
  }
  fmt::print("{}{}\n", table.text(terminal_width()), failed > 0 ? "Some results are wrong." : "All results are right.");
  return failed > 0 ? kFailed : (judged > 0 ? kOk : kUsage);
}

}  // namespace

void add_check(CLI::App& program, int& status) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      program.add_subcommand("check", "Run the conformance table on this machine, every implementation forced, against the fp64 reference");
  command->add_option("--operation", options->operation, "Only this operation, e.g. paged_attention")
      ->check(one_of(operation_names()))
      ->option_text("NAME");
  command->add_option("--implementation", options->implementation, "Only implementations whose name contains this, e.g. avx2");
  command->add_option("--case", options->name, "Only cases whose name contains this, of any size");
  command->add_flag("--quick", options->quick, "The short table (seconds instead of a minute)")->excludes("--case");
  CLI::Option* list = command->add_flag("--list", options->list, "Only name the cases");
  command->add_flag("--verbose", options->verbose, "A line for each case")->excludes(list);
  command->footer("Each failure prints the line that reproduces it. Exit status 1 when a result is wrong.");
  command->callback([options, &status] { status = check_all(*options); });
}

}  // namespace fovea::cli
