// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fovea/device.hpp"
#include "fovea/result.hpp"

namespace fovea {

struct PlanOptions {
  /// Force one implementation by its full name ("cpu.avx2.attention"); empty lets the library choose the first that accepts.
  std::string_view implementation{};
  /// A row's result must not depend on the rest of the batch.
  bool batch_invariant = false;
  /// A row has the same bits in dense, ragged and paged attention, whatever rows and hidden keys are beside it (docs/numerics.md).
  bool exact_rows = false;
  /// Gradients must have the same bits from run to run. Without, the order in which an implementation adds to dq may differ.
  bool deterministic = false;
  /// Rows of out, or of lse, that no sequence of a ragged batch has: a run sets them to 0, or to -inf. Without, it leaves them alone.
  bool fill_out = false, fill_lse = false;
};

namespace detail {

/// The result of an implementation's planner. Immutable: one plan may run in many threads at once, each with its own workspace.
template <class Args>
struct PlanState {
  virtual ~PlanState() = default;
  virtual Result<void> prepare(const Args& args, Workspace workspace, Stream stream) const = 0;
  virtual Result<void> run(const Args& args, Workspace workspace, Stream stream, bool prepared) const = 0;
  /// The tuning that was chosen, in one line.
  virtual std::string tuning() const = 0;

  std::string_view implementation{};
  std::size_t workspace_bytes = 0;
};

}  // namespace detail

/// A decision about one problem: which implementation, which tuning, how much workspace. Cheap to copy.
template <class Args>
class Plan {
 public:
  Plan(std::shared_ptr<const detail::PlanState<Args>> state, std::vector<Decline> declines)
      : state_(std::move(state)), declines_(std::move(declines)) {}

  /// Bytes of scratch memory that run() needs; monotone in every bound of the description.
  std::size_t workspace_bytes() const noexcept { return state_->workspace_bytes; }

  /// "cpu.avx512.attention"
  std::string_view implementation() const noexcept { return state_->implementation; }

  /// The choice, its tuning, and which implementations declined and why; several lines, for people.
  std::string explain() const {
    std::string text(state_->implementation);
    text += ": " + state_->tuning() + "\n";
    for (const Decline& decline : declines_) text += "declined: " + decline.implementation + ": " + decline.reason + "\n";
    return text;
  }

  /// Turns the lengths in `args` into a schedule, kept in the workspace, that several run_prepared() calls may share, one after another
  /// (the layers of one decode step). Valid until the lengths change or the workspace is written by anything else.
  Result<void> prepare(const Args& args, Workspace workspace = {}, Stream stream = {}) const {
    return state_->prepare(args, workspace, stream);
  }

  /// Schedules and computes. Allocates nothing and does not synchronise. Outputs are untouched when it returns an error. No output may
  /// share memory with any other tensor of the call, unless the operation says so: run() and prepare() refuse it. Views that interleave in
  /// one allocation share none.
  Result<void> run(const Args& args, Workspace workspace = {}, Stream stream = {}) const {
    return state_->run(args, workspace, stream, false);
  }

  /// Computes with the schedule that prepare() left in the same workspace.
  Result<void> run_prepared(const Args& args, Workspace workspace = {}, Stream stream = {}) const {
    return state_->run(args, workspace, stream, true);
  }

 private:
  std::shared_ptr<const detail::PlanState<Args>> state_;
  std::vector<Decline> declines_;
};

}  // namespace fovea
