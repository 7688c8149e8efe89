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
class Workbench {
 public:
  explicit Workbench(const Case& spec) : bound(bind(spec)), expected(expect(*bound)) {}

  static Workbench& of(const Case& spec) {
    static std::unique_ptr<Workbench> latest;
    if (!latest || latest->bound->spec.name != spec.name) {
      latest.reset();  // frees the memory first
      latest = std::make_unique<Workbench>(spec);
    }
    return *latest;
  }

  std::unique_ptr<BoundCase> bound;
  Expected expected;
};

class TableTest : public ::testing::Test {
 public:
  TableTest(const Case& spec, std::string_view implementation) : spec_(spec), implementation_(implementation) {}

  void TestBody() override {
    Workbench& bench = Workbench::of(spec_);
    const Report report = run_case(*bench.bound, bench.expected, implementation_);
    const std::string_view decline = expected_decline(spec_, implementation_);
    if (!decline.empty()) {
      EXPECT_EQ(report.status, Status::declined) << "was expected to decline: " << decline;
      EXPECT_NE(report.message.find(decline), std::string::npos) << "declined, but because: " << report.message;
    } else {
      EXPECT_EQ(report.status, Status::passed) << report.message << "\n  " << reproduce(spec_, implementation_);
    }
  }

 private:
  const Case& spec_;
  std::string_view implementation_;
};

void register_table(Tier largest) {
  const std::vector<ImplementationInfo> all = implementations();
  for (const Case& spec : all_cases()) {
    if (spec.tier > largest) continue;
    for (const ImplementationInfo& info : all) {
      if (info.operation != name_of(spec.operation) || !info.available) continue;
      const std::string suite(info.operation), test = spec.name.substr(suite.size() + 1) + " " + std::string(info.name);
      const std::string_view name = info.name;
      ::testing::RegisterTest(suite.c_str(), test.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                              [&spec, name]() -> ::testing::Test* { return new TableTest(spec, name); });
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
