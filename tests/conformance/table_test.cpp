// SPDX-License-Identifier: Apache-2.0
/// The whole case table against every implementation that this machine can run, each forced by name.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "expected_declines.hpp"
#include "fovea/info.hpp"
#include "run_case.hpp"

namespace fovea::check {
namespace {

/// The last case bound, with its expectation: tests are registered case by case, so each is made once.
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
    }
  }

 private:
  const AnyCase& entry_;
  std::string_view implementation_;
};

void register_table(Tier largest) {
  const std::vector<ImplementationInfo> all = implementations();
  for (const AnyCase& entry : all_cases()) {
    if (entry.tier > largest) continue;
    for (const ImplementationInfo& info : all) {
      if (info.operation != entry.operation || !info.available) continue;
      const std::string suite(info.operation), test = entry.name.substr(suite.size() + 1) + " " + std::string(info.name);
      const std::string_view name = info.name;
      ::testing::RegisterTest(suite.c_str(), test.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                              [&entry, name]() -> ::testing::Test* { return new TableTest(entry, name); });
    }
  }
}

}  // namespace
}  // namespace fovea::check

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const bool quick = argc == 3 && std::strcmp(argv[1], "--tier") == 0 && std::strcmp(argv[2], "quick") == 0;
  fovea::check::register_table(quick ? fovea::check::Tier::quick : fovea::check::Tier::full);
  return RUN_ALL_TESTS();
}
