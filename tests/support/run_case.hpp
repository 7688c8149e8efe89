// SPDX-License-Identifier: Apache-2.0
/// One case, one implementation, one verdict.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "trial.hpp"

namespace fovea::check {

/// Scratch memory of exactly the size a plan asked for: poisoned, between red zones.
class HostileWorkspace {
 public:
  explicit HostileWorkspace(std::size_t bytes) : bytes_(bytes) {
    if (bytes > 0) storage_ = std::make_unique<Storage>(bytes, 0);
  }
  Workspace view() const { return storage_ ? Workspace{storage_->data(), bytes_} : Workspace{}; }
  bool red_zones_intact() const { return !storage_ || storage_->red_zones_intact(); }

 private:
  std::size_t bytes_;
  std::unique_ptr<Storage> storage_{};
};

enum class Status : std::uint8_t { passed, failed, declined };

struct Report {
  Status status = Status::passed;
  std::string message{};  ///< what is wrong, or why it was declined
  double worst = 0;       ///< largest error / tolerance
};

/// Forces `implementation`, makes sure that it is what the plan runs, runs it once and judges.
Report run_case(Trial& trial, std::string_view implementation, bool batch_invariant = false);

/// "fovea check --case attention/gqa/bf16-9on3 --implementation cpu.avx2.attention"
std::string reproduce(std::string_view name, std::string_view implementation);

}  // namespace fovea::check
