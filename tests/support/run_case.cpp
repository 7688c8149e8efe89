// SPDX-License-Identifier: Apache-2.0
#include "run_case.hpp"

#include <fmt/format.h>

#include "cpu/parallel.hpp"
#include "device_runtime.hpp"

namespace fovea::check {

void share_small_work(bool share) { cpu::set_nanoseconds_of_thread(share ? 1 : 0); }

HostileWorkspace::HostileWorkspace(std::size_t bytes, Device device) {
  if (bytes == 0) return;
  tensors_.push_back({"workspace", HostileTensor(contiguous(DType::e4m3, {static_cast<std::int64_t>(bytes)}))});
  if (!has_own_memory(device)) return;
  memory_ = std::make_unique<DeviceMemory>(tensors_, device);
  memory_->upload(tensors_);
}

Workspace HostileWorkspace::view() const {
  if (tensors_.empty()) return {};
  const Storage& storage = tensors_[0].tensor.storage();
  return {memory_ ? memory_->translate(storage.data()) : storage.data(), storage.bytes()};
}

bool HostileWorkspace::red_zones_intact() const {
  if (memory_) memory_->download(tensors_);
  return tensors_.empty() || tensors_[0].tensor.storage().red_zones_intact();
}

PlacedTrial::PlacedTrial(const Trial& trial, std::string_view implementation, Stream stream)
    : place_{.device = device_of(implementation), .stream = stream} {
  if (!has_own_memory(place_.device)) return;
  memory_ = std::make_unique<DeviceMemory>(trial.tensors(), place_.device);
  memory_->upload(trial.tensors());
  place_.memory = memory_.get();
}

void PlacedTrial::upload(const Trial& from) const {
  if (memory_) memory_->upload(from.tensors());
}

Result<void> PlacedTrial::download(const Trial& to) const {
  if (!memory_) return {};
  if (Result<void> done = synchronize(place_.device); !done) return done;
  memory_->download(to.tensors());
  return {};
}

E4m3Products products_of(const AnyPlan& plan) {
  const std::string_view chosen = std::string_view(plan.explanation).substr(0, plan.explanation.find('\n'));
  return chosen.ends_with("e4m3 products") ? E4m3Products::native : E4m3Products::widened;
}

Report run_case(Trial& trial, std::string_view implementation, PlanOptions options) {
  const PlacedTrial placed(trial, implementation);
  options.implementation = implementation;
  const auto planned = trial.plan(options, placed.place());
  if (!planned) {
    const Error& error = planned.error();
    if (error.code == ErrorCode::unsupported && error.declines.size() == 1) return {Status::declined, error.declines[0].reason};
    return {Status::failed, "plan: " + to_string(error)};
  }
  if (planned->implementation != implementation) {
    return {Status::failed, fmt::format("forced {}, but the plan is of {}", implementation, planned->implementation)};
  }
  trial.answers();  // before the run: outputs may lie on inputs
  const HostileWorkspace workspace(planned->workspace_bytes, placed.place().device);
  if (has_own_memory(placed.place().device)) poison_unwritten_memory(placed.place().device);
  const Result<void> launched = planned->run(workspace.view());
  const Result<void> finished = placed.download(trial);
  if (const Result<void>& ran = launched ? finished : launched; !ran) {
    const std::string changed = trial.what_changed();
    return {Status::failed, fmt::format("run: {}{}{}", to_string(ran.error()), changed.empty() ? "" : "; and ", changed)};
  }
  const Judgement verdict = trial.judge(products_of(*planned));
  Report report{verdict.ok ? Status::passed : Status::failed, verdict.message, verdict.worst, verdict.note};
  if (!workspace.red_zones_intact()) {
    report.status = Status::failed;
    report.message += report.message.empty() ? "memory outside the workspace was written" : "; memory outside the workspace was written";
  }
  return report;
}

std::string reproduce(std::string_view name, std::string_view implementation) {
  return fmt::format("fovea check --case {} --implementation {}", name, implementation);
}

}  // namespace fovea::check
