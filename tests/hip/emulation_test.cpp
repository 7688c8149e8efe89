// SPDX-License-Identifier: Apache-2.0
/// The emulation catches what it promises to: each broken kernel ends with the fault that names its mistake, its correct form with none.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <string_view>

#include "broken_kernels.hpp"
#include "gpu/hip/emulation/machine.hpp"

namespace fovea::check {
namespace {

using gpu::emulation::Order;

std::array<int, 128> out;

/// The fault, or nothing.
std::string run(std::string_view name, Order order = Order::ascending) {
  const auto* kernel = gpu::emulation::find_kernel(name);
  if (kernel == nullptr) return "no such kernel";
  out.fill(-1);
  const Output params{out.data()};
  return gpu::emulation::run(kernel->body, &params, {{1, 1, 1}, kernel->threads}, order).value_or("");
}

struct Broken {
  std::string_view kernel, fault;
};
constexpr Broken kBroken[]{
    {"no_barrier", "LDS at byte 256 races: read while thread 64 has written it, with no barrier between"},
    {"no_wave_barrier", "LDS at byte 4 is read before any write"},
    {"both_write", "LDS at byte 0 races: written while thread 0 has written it, with no barrier between"},
    {"overwrites", "races: written while thread"},
    {"out_of_bounds", "thread 127: LDS at byte 512 is outside of the array of 512"},
    {"misaligned", "LDS at byte 2 is not aligned to 4"},
    {"unwritten", "LDS at byte 0 is read before any write"},
    {"leaves_before_barrier", "thread 64: ends without the barrier"},
    {"half_votes", "thread 32: does not reach the collective 'ballot'"},
    {"different_places", "thread 1: is at the collective 'ballot', lane 0 of its wave at another, 'of_lane_xor_16'"},
    {"different_turns", "thread 0: does not reach the collective 'ballot'"},
    {"not_uniform", "uniform: the lanes have different values"},
};

TEST(Emulation, NamesTheMistakeOfEachBrokenKernel) {
  for (const auto& [kernel, fault] : kBroken) {
    EXPECT_NE(run(kernel).find(fault), std::string::npos) << kernel << ": got '" << run(kernel) << "'";
  }
}

TEST(Emulation, FindsMissingBarriersInAnyOrderOfLanes) {
  for (const std::string_view kernel : {"no_barrier", "no_wave_barrier", "both_write", "overwrites"}) {
    EXPECT_NE(run(kernel, Order::descending), "") << kernel;
  }
}

TEST(Emulation, RunsCorrectKernelsInAnyOrderOfLanes) {
  for (const Order order : {Order::ascending, Order::descending}) {
    EXPECT_EQ(run("correct_waves", order), "");
    for (int thread = 0; thread < 128; ++thread) EXPECT_EQ(out[static_cast<std::size_t>(thread)], thread ^ 64);
    EXPECT_EQ(run("correct_lanes", order), "");
    for (int thread = 0; thread < 128; ++thread) EXPECT_EQ(out[static_cast<std::size_t>(thread)], thread ^ 1);
  }
}

TEST(Emulation, GoesOnAfterAFault) {
  EXPECT_NE(run("leaves_before_barrier"), "");
  EXPECT_EQ(run("correct_waves"), "");
}

}  // namespace
}  // namespace fovea::check
