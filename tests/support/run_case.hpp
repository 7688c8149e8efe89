// SPDX-License-Identifier: Apache-2.0
/// One case, one implementation, one verdict.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "trial.hpp"

namespace fovea::check {

/// Scratch memory of exactly the size that a plan requests: poisoned, between red zones.
class HostileWorkspace {
 public:
  explicit HostileWorkspace(std::size_t bytes, Device device = {});
  Workspace view() const;
  bool red_zones_intact() const;

 private:
  std::vector<Named> tensors_{};  ///< one, or none
  std::unique_ptr<DeviceMemory> memory_{};
};

/// A case in the memory of the device on which an implementation runs. For the CPU the memory stays where it is.
class PlacedTrial {
 public:
  PlacedTrial(const Trial& trial, std::string_view implementation, Stream stream = {});
  const Place& place() const { return place_; }
  /// Copies the host's tensors to the device, and the device's results back, once it is done. Another trial of the same shapes may take the
  /// place of the first.
  void upload(const Trial& from) const;
  Result<void> download(const Trial& to) const;

 private:
  std::unique_ptr<DeviceMemory> memory_{};
  Place place_;
};

/// How a plan's kernel multiplies e4m3 values, by its own words.
E4m3Products products_of(const AnyPlan& plan);

enum class Status : std::uint8_t { passed, failed, declined };

struct Report {
  Status status = Status::passed;
  std::string message{};  ///< what is wrong, or the reason of the decline
  double worst = 0;       ///< largest error / tolerance
  std::string note{};     ///< what else was measured
};

/// Forces `implementation`, makes sure that it is what the plan runs, runs it once and judges.
Report run_case(Trial& trial, std::string_view implementation, PlanOptions options = {});

/// Whether CPU threads share work however little it is. Cases are small, and sharing is tested.
void share_small_work(bool share);

/// "fovea check --case attention/gqa/bf16-9on3 --implementation cpu.avx2.attention"
std::string reproduce(std::string_view name, std::string_view implementation);

}  // namespace fovea::check
