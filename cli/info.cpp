// SPDX-License-Identifier: Apache-2.0
#include "fovea/info.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "table.hpp"

namespace fovea::cli {
namespace {

struct Options {
  bool json = false, markdown = false;
};

/// All implementations of the build, whatever the machine. The README shows this table.
Table support_table() {
  Table table({{"operation"}, {"implementation"}, {"accepts"}});
  for (const ImplementationInfo& row : implementations())
    table.add({std::string(row.operation), fmt::format("`{}`", row.name), std::string(row.accepts)});
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
  command->callback([options] {
    if (options->json) {
      fmt::print("{}\n", as_json().dump(2));
    } else if (options->markdown) {
      fmt::print("{}", support_table().markdown());
    } else {
      print_text();
    }
  });
}

}  // namespace fovea::cli
