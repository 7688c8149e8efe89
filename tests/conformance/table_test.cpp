// SPDX-License-Identifier: Apache-2.0
/// The case table against the implementations that this machine can run, each forced by name.
/// fovea_conformance [--tier full|quick] [--rows all|kernels|fastest]; docs/architecture.md says which implementations run which part.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "expected_declines.hpp"
#include "fovea/info.hpp"
#include "run_case.hpp"

namespace fovea::check {
namespace {

/// The last case bound, with its expectation. Tests are registered case by case, so each is made once.
Trial& trial_of(const AnyCase& entry) {
  static const AnyCase* bound = nullptr;
  static std::unique_ptr<Trial> latest;
  if (bound != &entry) {
    latest.reset();  // frees the memory first
    latest = entry.bind();
    bound = &entry;
  }
  return *latest;
}

class TableTest : public ::testing::Test {
 public:
  TableTest(const AnyCase& entry, std::string_view implementation) : entry_(entry), implementation_(implementation) {}

  void TestBody() override {
    const Report report = run_case(trial_of(entry_), implementation_);
    const std::string_view decline = expected_decline(entry_, implementation_);
    if (!decline.empty()) {
      EXPECT_EQ(report.status, Status::declined) << "was expected to decline: " << decline;
      EXPECT_NE(report.message.find(decline), std::string::npos) << "declined, but because: " << report.message;
    } else {
      EXPECT_EQ(report.status, Status::passed) << report.message << "\n  " << reproduce(entry_.name, implementation_);
      if (implementation_ == kSm90Attention) judge_whole_batches();
      const bool on_cpu = implementation_.starts_with("cpu.") && implementation_.ends_with("attention");
      if (on_cpu || implementation_ == kSm90Attention || implementation_ == "cuda.sm90.paged_attention") judge_exact_rows();
    }
  }

 private:
  /// Runs the one of two kernels that does not look at the batch, also where a call fits one wave.
  void judge_whole_batches() {
    const Report report = run_case(trial_of(entry_), implementation_, {.batch_invariant = true});
    EXPECT_EQ(report.status, Status::passed) << "batch_invariant: " << report.message;
  }

  /// With tiles and parts of their own.
  void judge_exact_rows() {
    const Report report = run_case(trial_of(entry_), implementation_, {.exact_rows = true});
    if (implementation_.ends_with("quantized_attention")) {
      EXPECT_EQ(report.status, Status::declined) << "exact_rows: " << report.message;
    } else if (!implementation_.starts_with("cuda.") || report.status != Status::declined) {  // wide heads, masks
      EXPECT_EQ(report.status, Status::passed) << "exact_rows: " << report.message;
    }
  }

  const AnyCase& entry_;
  std::string_view implementation_;
};

/// The implementations that run a case: all, all but the reference (which always makes the expectations), or the first that takes it.
enum class Rows : std::uint8_t { all, kernels, fastest };

std::vector<std::string_view> rows_of(const AnyCase& entry, Rows rows) {
  static const std::vector<ImplementationInfo> all = implementations();
  std::vector<std::string_view> names;
  for (const ImplementationInfo& info : all) {
    if (info.operation != entry.operation || !info.available) continue;
    if (rows != Rows::all && info.name.starts_with("reference.")) continue;
    if (rows == Rows::fastest && !expected_decline(entry, info.name).empty()) continue;
    names.push_back(info.name);
    if (rows == Rows::fastest) break;
  }
  return names;
}

void register_table(Tier largest, Rows rows) {
  for (const AnyCase& entry : all_cases()) {
    if (entry.tier > largest) continue;
    for (const std::string_view name : rows_of(entry, rows)) {
      const std::string suite(entry.operation), test = entry.name.substr(suite.size() + 1) + " " + std::string(name);
      ::testing::RegisterTest(suite.c_str(), test.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                              [&entry, name]() -> ::testing::Test* { return new TableTest(entry, name); });
    }
  }
}

/// Registers the tests that the arguments select. Returns false if the arguments are not understood.
bool register_arguments(std::span<const char* const> arguments) {
  std::map<std::string_view, std::string_view> given{{"--tier", "full"}, {"--rows", "all"}};
  for (std::size_t at = 0; at < arguments.size(); at += 2) {
    const auto option = given.find(arguments[at]);
    if (option == given.end() || at + 1 == arguments.size()) return false;
    option->second = arguments[at + 1];
  }
  const std::map<std::string_view, Tier> tiers{{"full", Tier::full}, {"quick", Tier::quick}};
  const std::map<std::string_view, Rows> rows{{"all", Rows::all}, {"kernels", Rows::kernels}, {"fastest", Rows::fastest}};
  if (!tiers.contains(given["--tier"]) || !rows.contains(given["--rows"])) return false;
  register_table(tiers.at(given["--tier"]), rows.at(given["--rows"]));
  return true;
}

}  // namespace
}  // namespace fovea::check

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!fovea::check::register_arguments({argv + 1, argv + argc})) {
    fmt::print(stderr, "usage: fovea_conformance [--tier full|quick] [--rows all|kernels|fastest]\n");
    return 2;
  }
  fovea::check::share_small_work(true);
  return RUN_ALL_TESTS();
}
