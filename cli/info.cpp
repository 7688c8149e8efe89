// SPDX-License-Identifier: Apache-2.0
#include "fovea/info.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "commands.hpp"
#include "problems.hpp"
#include "table.hpp"
#include "values.hpp"

namespace fovea::cli {
namespace {

struct Options {
  bool json = false, markdown = false, matrix = false, types = false, all = false;
  std::string operation{};
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

/// A planner's answer to an operation's usual problem: "cuda.sm90.attention: ..." is a kernel for one architecture.
std::string support(const ExplainedOperation& operation, const ProblemTypes& types, const char* device) {
  const Explanation planned = operation.explain(*usual_problem(types), device_of(device), {});
  if (!planned) return "-";
  if (planned->starts_with("reference.")) return "reference";
  if (planned->starts_with("cuda.") && !planned->starts_with("cuda.portable.")) return "own kernel";
  return planned->starts_with("hip.") ? "emulated" : "yes";
}

/// A table whose last columns are devices.
Table by_device(std::vector<Table::Column> titles) {
  for (const auto& [title, device] : kColumns) titles.push_back({title});
  return Table(std::move(titles));
}

/// A row, unless no device computes it.
void add_by_device(Table& table, std::vector<std::string> row, const ExplainedOperation& operation, const ProblemTypes& types) {
  const std::size_t said = row.size();
  for (const auto& [title, device] : kColumns) row.push_back(support(operation, types, device));
  const auto computed = [](const std::string& cell) { return cell != "-"; };
  if (std::any_of(row.begin() + static_cast<std::ptrdiff_t>(said), row.end(), computed)) table.add(std::move(row));
}

/// Operations by devices, as the planner answers. The README shows this table.
Table matrix() {
  Table table = by_device({{"operation"}});
  for (const ExplainedOperation& operation : explained_operations()) {
    add_by_device(table, {fmt::format("`{}`", operation.name)}, operation, {.dtype = DType::f16});
  }
  return table;
}

/// The caches that differ: of the type of q, in e4m3, in formats of codes, and packed.
std::vector<std::pair<std::string, ProblemTypes>> caches_of(const ExplainedOperation& operation, DType dtype) {
  std::vector<std::pair<std::string, ProblemTypes>> all{{operation.takes("--page") ? std::string(name_of(dtype)) : "none", {dtype}}};
  if (dtype == DType::e4m3) return all;
  if (operation.takes("--cache-dtype")) all.push_back({"e4m3", {.dtype = dtype, .cache = DType::e4m3}});
  if (operation.takes("--kv-format")) {
    for (const KvRowFormat& format : kKvFormats) all.push_back({fmt::format("`{}`", format.name), {.dtype = dtype, .kv = format.format}});
  }
  if (!operation.takes("--format")) return all;
  for (const PackedFormat& format : kPackedFormats)
    all.push_back({fmt::format("`{}`", format.name), {.dtype = dtype, .format = format.format}});
  return all;
}

/// Types of queries and caches by devices, as the planner answers. docs/serving.md shows this table.
Table types() {
  Table table = by_device({{"operation"}, {"queries"}, {"cache"}});
  for (const ExplainedOperation& operation : explained_operations()) {
    const bool of_types = operation.name.ends_with("attention") && operation.name != "quantized_attention";
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::e4m3}) {
      if (!of_types) continue;
      for (const auto& [cache, problem] : caches_of(operation, dtype)) {
        add_by_device(table, {fmt::format("`{}`", operation.name), std::string(name_of(dtype)), cache}, operation, problem);
      }
    }
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

/// Lines of text and tables have at most this many characters.
std::size_t width() {
  constexpr std::size_t kWidest = 100;
  const std::size_t terminal = terminal_width();
  return terminal == 0 ? kWidest : std::min(terminal, kWidest);
}

/// "cpu.avx2" of "cpu.avx2.attention".
std::string family(const ImplementationInfo& row) { return std::string(row.name.substr(0, row.name.rfind('.'))); }

/// Adds a name to a list that people read, once.
void add_once(std::string& list, const std::string& name) {
  if ((", " + list + ",").find(", " + name + ",") != std::string::npos) return;
  list += (list.empty() ? "" : ", ") + name;
}

/// Operations in order, and what this machine runs of each.
Table here() {
  Table table({{"operation", Align::whole}, {"runs here, in the order of choice"}});
  std::string operation, families;
  const auto add = [&] {
    if (!operation.empty()) table.add({operation, families.empty() ? "nothing" : families});
  };
  for (const ImplementationInfo& row : implementations()) {
    if (row.operation != operation) {
      add();
      operation = row.operation;
      families.clear();
    }
    if (row.available) add_once(families, family(row));
  }
  add();
  return table;
}

/// Implementations that this machine cannot run, by the reason.
Table absent() {
  std::vector<std::pair<std::string, std::string>> reasons;
  for (const ImplementationInfo& row : implementations()) {
    if (row.available) continue;
    const auto has_reason = [&](const auto& entry) { return entry.first == row.unavailable_because; };
    auto found = std::find_if(reasons.begin(), reasons.end(), has_reason);
    if (found == reasons.end()) found = reasons.insert(found, {row.unavailable_because, ""});
    add_once(found->second, family(row));
  }
  Table table({{"not here"}, {"because"}});
  for (const auto& [reason, names] : reasons) table.add({names, reason});
  return table;
}

void print_machine() {
  fmt::print("fovea {}\n\n", version());
  for (const DeviceInfo& device : devices()) {
    const std::string threads =
        device.device.backend == Backend::cpu ? fmt::format(", {} threads unless told otherwise", num_threads()) : "";
    fmt::print("{}: {} cores{}\n  kernels for {}\n", device.name, device.cores, threads, fmt::join(device.features, ", "));
  }
  fmt::print("\n{}\n", here().text(width()));
  const Table missing = absent();
  if (!missing.empty()) fmt::print("{}\n", missing.text(width()));
  fmt::print(
      "What each implementation accepts: `fovea info --operation NAME`, or `--all`.\n"
      "What other devices run: `fovea info --matrix`, and in which types: `fovea info --types`.\n");
}

/// The implementations of an operation, or of all, in the order in which planning asks them.
void print_implementations(const std::string& operation) {
  Table table({{"implementation", Align::whole}, {"here"}, {"accepts"}});
  for (const ImplementationInfo& row : implementations()) {
    if (!operation.empty() && row.operation != operation) continue;
    table.add({std::string(row.name), row.available ? "yes" : "no", std::string(row.accepts)});
  }
  fmt::print(
      "{}\nPlanning asks the rows of an operation in this order and takes the first that accepts.\n"
      "Why one is not here: `fovea info`.\n",
      table.text(width()));
}

/// Options that list implementations.
void add_lists(CLI::App& command, Options& options) {
  CLI::Option* all = command.add_flag("--all", options.all, "Print every implementation with what it accepts");
  CLI::Option* one =
      command.add_option("--operation", options.operation, "Print the implementations of one operation with what they accept")
          ->check(one_of(operation_names()))
          ->option_text("NAME")
          ->excludes(all);
  for (const char* other : {"--json", "--markdown", "--matrix", "--types"}) {
    all->excludes(command.get_option(other));
    one->excludes(command.get_option(other));
  }
}

}  // namespace

void add_info(CLI::App& program, int&) {
  auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand("info", "Devices, instruction sets, and what runs here");
  command->add_flag("--json", options->json, "Print JSON");
  command->add_flag("--markdown", options->markdown, "Print the support table of the documentation")->excludes("--json");
  command->add_flag("--matrix", options->matrix, "Print operations by devices, as the documentation shows them")
      ->excludes("--json")
      ->excludes("--markdown");
  command->add_flag("--types", options->types, "Print types of queries and caches by devices, as the documentation shows them")
      ->excludes("--json")
      ->excludes("--markdown")
      ->excludes("--matrix");
  add_lists(*command, *options);
  command->callback([options] {
    if (options->matrix) {
      fmt::print("{}", matrix().markdown());
    } else if (options->types) {
      fmt::print("{}", types().markdown());
    } else if (options->json) {
      fmt::print("{}\n", as_json().dump(2));
    } else if (options->markdown) {
      fmt::print("{}", support_table().markdown());
    } else if (options->all || !options->operation.empty()) {
      print_implementations(options->operation);
    } else {
      print_machine();
    }
  });
}

}  // namespace fovea::cli
