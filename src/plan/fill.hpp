// SPDX-License-Identifier: Apache-2.0
/// Fills rows as PlanOptions::fill_out and fill_lse ask, whichever implementation computes.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "op/common/unowned_rows.hpp"
#include "plan/operations.hpp"

namespace fovea::detail {

/// The core of a ragged batch; null of a fixed one, all of whose rows have a sequence.
inline const AttentionCore* ragged_core(const AttentionProblem& problem) { return problem.ragged ? &problem : nullptr; }
inline const AttentionCore* ragged_core(const PagedAttentionProblem& problem) { return &problem; }
inline const AttentionCore* ragged_core(const LatentAttentionProblem& problem) { return problem.ragged ? &problem : nullptr; }
inline const AttentionCore* ragged_core(const QuantizeAndAttendProblem& problem) { return ragged_core(problem.whole); }

/// Fills them on the device, in the order of the stream.
Result<void> fill_unowned_rows(const UnownedRows& rows, Device device, Stream stream);

/// Runs a plan and fills the rows that it left.
template <class Args>
class FilledState final : public PlanState<Args> {
 public:
  /// `rows`: all but the pointers.
  FilledState(std::shared_ptr<const PlanState<Args>> planned, const UnownedRows& rows, const PlanOptions& options, Device device)
      : planned_(std::move(planned)), rows_(rows), fill_out_(options.fill_out), fill_lse_(options.fill_lse), device_(device) {
    this->implementation = planned_->implementation;
    this->workspace_bytes = planned_->workspace_bytes;
  }
  Result<void> prepare(const Args& args, Workspace workspace, Stream stream) const override {
    return planned_->prepare(args, workspace, stream);
  }
  Result<void> run(const Args& args, Workspace workspace, Stream stream, bool prepared) const override {
    if (Result<void> done = planned_->run(args, workspace, stream, prepared); !done) return done;
    UnownedRows rows = rows_;
    rows.cu_seqlens_q = args.cu_seqlens_q;
    rows.out = fill_out_ ? static_cast<std::byte*>(args.out) : nullptr;
    rows.lse = fill_lse_ ? args.lse : nullptr;
    return fill_unowned_rows(rows, device_, stream);
  }
  std::string tuning() const override { return planned_->tuning(); }

 private:
  std::shared_ptr<const PlanState<Args>> planned_;
  UnownedRows rows_;
  bool fill_out_, fill_lse_;
  Device device_;
};

/// All but the pointers.
inline UnownedRows unowned_rows(const AttentionCore& core) {
  const auto size = static_cast<std::int64_t>(size_of(core.out_dtype));
  return {.batch = core.batch,
          .total = core.total_q,
          .bound = core.max_seq_q,
          .heads = core.heads,
          .row_bytes = core.out.row * size,
          .head_bytes = core.out.head * size,
          .value_bytes = core.head_dim_v * size,
          .lse_row = core.lse.row,
          .lse_head = core.lse.head};
}

/// The plan as `options` want it: `planned` itself where it leaves no row, or may.
template <class Operation, class State = std::shared_ptr<const PlanState<typename Operation::Args>>>
State filled(State planned, const typename Operation::Problem& problem, Device device, PlanOptions options) {
  using Args = typename Operation::Args;
  if constexpr (requires(const Args& args) { ragged_core(problem), args.out, args.lse; }) {
    const AttentionCore* core = ragged_core(problem);
    if (core == nullptr || core->total_q == 0) return planned;
    options.fill_lse = options.fill_lse && core->has_lse;
    if (options.fill_out || options.fill_lse) {
      return std::make_shared<FilledState<Args>>(std::move(planned), unowned_rows(*core), options, device);
    }
  }
  return planned;
}

}  // namespace fovea::detail
