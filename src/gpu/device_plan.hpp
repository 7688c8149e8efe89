// SPDX-License-Identifier: Apache-2.0
/// The plan of every GPU entry: checks before it launches.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <string_view>

#include "fovea/plan.hpp"
#include "op/common/checks.hpp"
#include "op/common/division.hpp"

namespace fovea::gpu {

/// Options of scores that the dense and paged attention kernels of GPUs compute.
inline constexpr std::array<std::string_view, 6> kScoreOptions{"mask.left", "mask.right", "mask.anchor (top_left)",
                                                               "softcap",   "sink",       "lse"};

/// Division by a count of any size. Below 1 or above 2^31 - 1, as empty calls may have it, the nearest number in between divides.
constexpr detail::FastDivmod divmod_by(std::int64_t count) {
  return detail::FastDivmod(static_cast<int>(std::clamp<std::int64_t>(count, 1, std::numeric_limits<int>::max())));
}

/// `check_args(problem, args)` is the operation's. `CurrentDevice` makes a device the current one of its backend while it lives.
template <class Problem, class Args, class CurrentDevice>
class DevicePlan : public detail::PlanState<Args> {
 public:
  Result<void> prepare(const Args& args, Workspace workspace, Stream stream) const final {
    return on_device(args, workspace, [&] { return schedule(args, workspace, stream); });
  }
  Result<void> run(const Args& args, Workspace workspace, Stream stream, bool prepared) const final {
    return on_device(args, workspace, [&] { return compute(args, workspace, stream, prepared); });
  }

 protected:
  DevicePlan(std::string_view name, const Problem& problem, Device device) : problem_(problem), device_(device) {
    this->implementation = name;
  }

  /// Whether no output has an element.
  virtual bool is_empty() const = 0;

  // When these are called, arguments and workspace have been checked, there is something to compute, and the plan's device is current.

  /// Launches what run(.., prepared) leaves out. Most kernels have no schedule in memory.
  virtual Result<void> schedule(const Args&, Workspace, Stream) const { return {}; }
  virtual Result<void> compute(const Args& args, Workspace workspace, Stream stream, bool prepared) const = 0;

  Problem problem_;
  Device device_;

 private:
  template <class Launches>
  Result<void> on_device(const Args& args, Workspace workspace, Launches&& launches) const {
    if (Result<void> good = check_args(problem_, args); !good) return good;
    if (Result<void> good = detail::check_workspace(workspace, this->workspace_bytes); !good) return good;
    if (is_empty()) return {};
    const CurrentDevice current(device_.ordinal);
    if (!current.status()) return current.status();
    return launches();
  }
};

}  // namespace fovea::gpu
