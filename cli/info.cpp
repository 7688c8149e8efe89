// SPDX-License-Identifier: Apache-2.0
#include "fovea/info.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "commands.hpp"
#include "problems.hpp"
#include "table.hpp"
#include "values.hpp"

namespace fovea::cli {
namespace {

struct Options {
  bool json = false, markdown = false, matrix = false;
};

/// All implementations of the build, whatever the machine. docs/support.md shows this table.
Table support_table() {
  Table table({{"operation"}, {"implementation"}, {"accepts"}});
  for (const ImplementationInfo& row : implementations())
    table.add({std::string(row.operation), fmt::format("`{}`", row.name), std::string(row.accepts)});
  return table;
}

/// Titles of the matrix's columns, and a device of each.
constexpr std::pair<const char*, const char*> kColumns[] = {
    {"CPU", "cpu"},           {"NVIDIA 7.5", "sm75"},  {"8.0 to 8.9", "sm80"},
    {"9.0 (Hopper)", "sm90"}, {"10.0, 12.0", "sm100"}, {"AMD gfx90a, gfx942", "gfx942"},
};

/// What a planner says to an operation's usual problem in f16: "cuda.sm90.attention: ..." is a kernel for one architecture.
std::string support(const ExplainedOperation& operation, const char* device) {
  const Explanation planned = operation.explain(*usual_problem(DType::f16), device_of(device), {});
  if (!planned) return "-";
  if (planned->starts_with("cuda.") && !planned->starts_with("cuda.portable.")) return "own kernel";
  return planned->starts_with("hip.") ? "emulated" : "yes";
}

/// Operations by devices, as the planner answers. The README shows this table.
Table matrix() {
  std::vector<Table::Column> titles{{"operation"}};
  for (const auto& [title, device] : kColumns) titles.push_back({title});
  Table table(std::move(titles));
  for (const ExplainedOperation& operation : explained_operations()) {
    std::vector<std::string> row{fmt::format("`{}`", operation.name)};
    for (const auto& [title, device] : kColumns) row.push_back(support(operation, device));
    table.add(std::move(row));
  }
  return table;
}

nlohmann::json as_json() {
  nlohmann::json json{{"version", version()}, {"devices", nlohmann::json::array()}, {"implementations", nlohmann::json::array()}};
  for (const DeviceInfo& device : devices()) {
    json["devices"].push_back({{"name", device.name}, {"features", device.features}, {"cores", device.cores}});
  }
  for (const ImplementationInfo& row : implementations()) {
    json["implementations"].push_back({{"name", row.name},
                                       {"operation", row.operation},
                                       {"accepts", row.accepts},
                                       {"available", row.available},
                                       {"unavailable_because", row.unavailable_because}});
  }
  return json;
}

void print_text() {
  fmt::print("fovea {}\n\n", version());
  for (const DeviceInfo& device : devices()) {
    fmt::print("{}: {} cores; instruction sets with kernels: {}\n", device.name, device.cores, fmt::join(device.features, ", "));
  }
  fmt::print("{} threads unless told otherwise\n\n", num_threads());
  Table table({{"implementation"}, {"here"}, {"accepts"}});
  for (const ImplementationInfo& row : implementations()) {
    table.add({std::string(row.name), row.available ? "yes" : "no: " + row.unavailable_because, std::string(row.accepts)});
  }
  fmt::print("{}\nPlanning asks the rows of an operation in this order and takes the first that accepts.\n", table.text(terminal_width()));
}

}  // namespace

void add_info(CLI::App& program, int&) {
  auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand("info", "Devices, instruction sets, and every implementation with what it accepts");
  command->add_flag("--json", options->json, "Print JSON");
  command->add_flag("--markdown", options->markdown, "Print the support table of the documentation")->excludes("--json");
  command->add_flag("--matrix", options->matrix, "Print operations by devices, as the documentation shows them")
      ->excludes("--json")
      ->excludes("--markdown");
  command->callback([options] {
    if (options->matrix) {
      fmt::print("{}", matrix().markdown());
    } else if (options->json) {
      fmt::print("{}\n", as_json().dump(2));
    } else if (options->markdown) {
      fmt::print("{}", support_table().markdown());
    } else {
      print_text();
    }
  });
}

}  // namespace fovea::cli
