// SPDX-License-Identifier: Apache-2.0
/// `fovea bench`: cases are checked, then timed, and compared with what the machine can do.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ceilings.hpp"
#include "commands.hpp"
#include "device_runtime.hpp"
#include "fovea/info.hpp"
#include "output.hpp"
#include "run_case.hpp"
#include "table.hpp"
#include "values.hpp"

namespace fovea::cli {
namespace {

using check::AnyCase;

struct Options {
  std::string name, implementation, json;
  int threads = 0;
  double seconds = 1.0, device_peak = 0;
  bool ceilings_only = false, list = false;
};

struct Timing {
  double median = 0, low = 0, high = 0;  ///< seconds; low and high bound the middle eight tenths
  std::size_t runs = 0;
};

struct Row {
  const AnyCase* entry = nullptr;
  std::string implementation{};
  std::string note{};  ///< other measurements of the check
  Timing timing{};
  check::Work work{};
  double host = 0;                 ///< on a GPU: seconds that the host takes to issue a call
  double peak = 0, bandwidth = 0;  ///< the ceilings; on the CPU the better of those measured before and after the case

  /// Seconds that the arithmetic and the bytes take at the ceilings: the two roofs of the roofline.
  double compute() const { return work.flops / peak; }
  double traffic() const { return work.bytes / bandwidth; }
  double floor() const { return std::max(compute(), traffic()); }
  bool memory_bound() const { return traffic() > compute(); }
};

double seconds_now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// Takes samples (each returns its seconds) for about `seconds`, at least five, after a warm-up.
template <class Sample>
Timing time_samples(Sample sample, double seconds) {
  sample();
  sample();
  std::vector<double> samples;
  constexpr std::size_t kFewest = 5, kMost = 100'000;
  for (const double begin = seconds_now(); samples.size() < kFewest || (seconds_now() - begin < seconds && samples.size() < kMost);)
    samples.push_back(sample());
  std::sort(samples.begin(), samples.end());
  const auto at = [&](double part) { return samples[static_cast<std::size_t>(part * static_cast<double>(samples.size() - 1) + 0.5)]; };
  return {at(0.5), at(0.1), at(0.9), samples.size()};
}

template <class Run>
Timing time(Run run, double seconds) {
  return time_samples(
      [&] {
        const double start = seconds_now();
        run();
        return seconds_now() - start;
      },
      seconds);
}

/// On a GPU: one call is recorded as a graph and launched repeatedly, timed by the device's clock. A sample is as many launches as take a
/// few milliseconds, which hides the clock's resolution.
Timing time_on_device(const check::AnyPlan& plan, Workspace workspace, const check::Place& place, double seconds) {
  const check::Graph graph(place.device, place.stream, [&] { return plan.run(workspace); });
  constexpr double kSample = 5e-3;
  const double once = graph.seconds(3);
  const int launches = std::clamp(static_cast<int>(kSample / once), 1, 1000);
  Timing timing = time_samples([&] { return graph.seconds(launches); }, seconds);
  timing.runs *= static_cast<std::size_t>(launches);
  return timing;
}

/// Host time of a call on a GPU: several calls in a row, and nothing waits for the device between them. They are too few to fill the
/// device's queue, which would make the host wait.
double host_seconds(const check::AnyPlan& plan, Workspace workspace, Device device) {
  constexpr int kCalls = 20;
  constexpr double kSeconds = 0.05;
  const Timing timing = time_samples(
      [&] {
        check::synchronize(device).value();
        const double start = seconds_now();
        for (int call = 0; call < kCalls; ++call) plan.run(workspace).value();
        return (seconds_now() - start) / kCalls;
      },
      kSeconds);
  check::synchronize(device).value();
  return timing.median;
}

/// The first implementation whose name contains the requested one; empty when there is none.
std::string named_implementation(const AnyCase& entry, const Options& options) {
  for (const ImplementationInfo& row : implementations()) {
    if (row.available && row.operation == entry.operation && row.name.find(options.implementation) != std::string::npos)
      return std::string(row.name);
  }
  return {};
}

Row measure(const AnyCase& entry, const Options& options) {
  Row row{.entry = &entry};
  row.implementation = named_implementation(entry, options);
  if (row.implementation.empty()) return row;
  const std::unique_ptr<check::Trial> trial = entry.bind();
  if (options.implementation.empty()) row.implementation = trial->plan({}).value().implementation;
  const check::Report report = check::run_case(*trial, row.implementation);
  if (report.status == check::Status::declined && !options.implementation.empty()) return {};
  if (report.status != check::Status::passed)
    throw std::runtime_error(fmt::format("{} on {}: {}", entry.name, row.implementation, report.message));

  const Device device = check::device_of(row.implementation);
  const auto side = device.backend == Backend::cpu ? nullptr : std::make_unique<check::SideStream>(device);
  const check::PlacedTrial placed(*trial, row.implementation, side ? side->get() : Stream{});
  const check::AnyPlan plan = trial->plan({.implementation = row.implementation}, placed.place()).value();
  const check::HostileWorkspace workspace(plan.workspace_bytes, device);
  row.timing = side ? time_on_device(plan, workspace.view(), placed.place(), options.seconds)
                    : time([&] { plan.run(workspace.view()).value(); }, options.seconds);
  if (side) row.host = host_seconds(plan, workspace.view(), device);
  row.note = report.note;
  row.work = trial->work();
  return row;
}

void hold_against(Row& row, const Ceilings& ceilings) {
  const bool bf16 = row.work.operands == DType::bf16 || row.work.operands == DType::e4m3;
  row.peak = bf16 ? ceilings.bf16_peak : ceilings.f32_peak;
  row.bandwidth = ceilings.read_bandwidth;
}

nlohmann::json as_json(const Ceilings& ceilings) {
  return {{"threads", ceilings.threads},     {"read_bandwidth", ceilings.read_bandwidth},
          {"f32_peak", ceilings.f32_peak},   {"f32_instruction", ceilings.f32_instruction},
          {"bf16_peak", ceilings.bf16_peak}, {"bf16_instruction", ceilings.bf16_instruction}};
}

nlohmann::json as_json(const Row& row) {
  nlohmann::json json{{"case", row.entry->name},
                      {"implementation", row.implementation},
                      {"median_s", row.timing.median},
                      {"low_s", row.timing.low},
                      {"high_s", row.timing.high},
                      {"runs", row.timing.runs},
                      {"flops", row.work.flops},
                      {"bytes", row.work.bytes},
                      {"compute_floor_s", row.compute()},
                      {"memory_floor_s", row.traffic()},
                      {"peak", row.peak},
                      {"bandwidth", row.bandwidth},
                      {"floor_s", row.floor()},
                      {"bound", row.memory_bound() ? "memory" : "compute"}};
  if (row.host > 0) json["host_s"] = row.host;
  if (!row.note.empty()) json["note"] = row.note;
  return json;
}

void print(const Ceilings& ceilings) {
  if (ceilings.threads > 0) fmt::print("{} threads; ", ceilings.threads);
  fmt::print("memory reads {:.1f} GB/s; f32 {:.0f} GFLOP/s ({}); bf16 {:.0f} GFLOP/s ({})\n\n", ceilings.read_bandwidth / 1e9,
             ceilings.f32_peak / 1e9, ceilings.f32_instruction, ceilings.bf16_peak / 1e9, ceilings.bf16_instruction);
}

void print(const std::vector<Row>& rows) {
  Table table({{"case"},
               {"implementation"},
               {"median", Align::right},
               {"10 % - 90 %", Align::right},
               {"GFLOP/s", Align::right},
               {"GB/s", Align::right},
               {"of the peak", Align::right},
               {"of the bandwidth", Align::right},
               {"bound by"}});
  const auto milliseconds = [](double seconds) { return fmt::format("{:.4g}", seconds * 1e3); };
  for (const Row& row : rows) {
    const auto share = [&](double floor) { return fmt::format("{:.0f} %", 100 * floor / row.timing.median); };
    table.add({row.entry->name, row.implementation, milliseconds(row.timing.median) + " ms",
               milliseconds(row.timing.low) + " - " + milliseconds(row.timing.high),
               fmt::format("{:.1f}", row.work.flops / row.timing.median / 1e9),
               fmt::format("{:.1f}", row.work.bytes / row.timing.median / 1e9), share(row.compute()), share(row.traffic()),
               row.memory_bound() ? "memory" : "compute"});
  }
  fmt::print("{}", table.text(terminal_width()));
  for (const Row& row : rows)
    if (!row.note.empty()) fmt::print("{} on {}: {}\n", row.entry->name, row.implementation, row.note);
}

int bench(const Options& options) {
  if (options.threads > 0) set_num_threads(options.threads);
  std::vector<const AnyCase*> cases;
  for (const AnyCase& entry : check::all_cases()) {
    const bool matches = options.name.empty() || entry.name.find(options.name) != std::string::npos;
    if (entry.tier == check::Tier::bench && matches && !options.ceilings_only) cases.push_back(&entry);
  }
  if (options.list) {
    for (const AnyCase* entry : cases) fmt::print("{}\n", entry->name);
    return kOk;
  }
  if (cases.empty() && !options.ceilings_only) {
    complain(fmt::format("fovea bench: no case matches \"{}\"; `fovea bench --list` names them", options.name));
    return kUsage;
  }
  const bool on_device = check::device_of(options.implementation).backend != Backend::cpu;
  if (!on_device && options.device_peak != 0) {
    complain(fmt::format("fovea bench: --device-peak: got {}, want none without an --implementation on a GPU", options.device_peak));
    return kUsage;
  }
  const auto meter = on_device ? nullptr : std::make_unique<CeilingMeter>(num_threads());
  const Ceilings ceilings = on_device ? device_ceilings({Backend::cuda, 0}, options.device_peak) : meter->measure();
  print(ceilings);
  Ceilings before = ceilings;
  std::vector<Row> rows;
  try {
    Progress progress;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      progress.show(fmt::format("{} of {}: {}", i + 1, cases.size(), cases[i]->name));
      Row row = measure(*cases[i], options);
      if (row.implementation.empty()) continue;
      const Ceilings after = meter ? meter->measure() : before;
      hold_against(row, better(before, after));
      before = after;
      rows.push_back(std::move(row));
    }
  } catch (const std::exception& error) {
    complain(fmt::format("fovea bench: not timed, because it is wrong: {}", error.what()));
    return kFailed;
  }
  if (!options.ceilings_only) print(rows);
  if (options.json.empty()) return kOk;
  const DeviceInfo device = on_device ? devices().back() : devices().front();
  nlohmann::json json{{"version", version()},
                      {on_device ? "gpu" : "cpu", device.name},
                      {"features", device.features},
                      {"ceilings", as_json(ceilings)},
                      {"rows", nlohmann::json::array()}};
  for (const Row& row : rows) json["rows"].push_back(as_json(row));
  std::ofstream file(options.json);
  file << json.dump(2) << "\n" << std::flush;
  if (!file) {
    complain(fmt::format("fovea bench: cannot write {}", options.json));
    return kUsage;
  }
  return kOk;
}

}  // namespace

void add_bench(CLI::App& program, int& status) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      program.add_subcommand("bench", "Time the benchmark cases, each checked first, against this machine's measured ceilings");
  constexpr std::int64_t kMostThreads = 4096;
  CLI::Option* name = command->add_option("--case", options->name, "Only cases whose name contains this");
  command->add_option("--implementation", options->implementation,
                      "The first implementation whose name contains this, instead of the one that planning chooses");
  command->add_option("--device-peak", options->device_peak, "GPU: FLOP/s of its best bf16 matrix product, measured elsewhere")
      ->check(positive());
  command->add_option("--threads", options->threads, "Threads (default: as many as the library would use)")->check(count(1, kMostThreads));
  command->add_option("--seconds", options->seconds, "Time for each case")->check(positive())->capture_default_str();
  command->add_option("--json", options->json, "Also write the results to this file");
  command->add_flag("--ceilings", options->ceilings_only, "Only measure the ceilings")->excludes(name);
  CLI::Option* list = command->add_flag("--list", options->list, "Only name the cases");
  for (const char* of_a_run : {"--implementation", "--device-peak", "--threads", "--seconds", "--json", "--ceilings"})
    list->excludes(of_a_run);
  command->footer(
      "Rates count each multiplication and addition, and each byte that must move, once. The shares are the least possible time at\n"
      "each of the two ceilings over the measured time; the larger one says what the case is bound by. For PyTorch beside it:\n"
      "./dev bench. Exit status 1 when a result is wrong.");
  command->callback([options, &status] { status = bench(*options); });
}

}  // namespace fovea::cli
