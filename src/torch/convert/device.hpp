// SPDX-License-Identifier: Apache-2.0
/// Where a call runs: the device of its tensors, torch's current stream there, and scratch memory from torch's allocator.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include "fovea/fovea.hpp"

namespace fovea::binding {

/// The backend of torch's cuda devices: HIP in ROCm's build of torch.
Backend gpu_backend();

/// A new call begins in this thread: its device is not known yet.
void begin_call();

/// A call that is only planned for `device`: its tensors may be on torch's meta device, descriptions without memory.
void begin_planning(Device device);

/// The first tensor of a call says its device; all others must agree.
void check_device(const torch::stable::Tensor& tensor, const char* name);

/// The CPU as long as no tensor has said otherwise.
Device call_device();

/// Sets the device that the tensors of an equal call have said.
void set_call_device(Device device);

/// torch's current stream on the call's device; nothing on the CPU.
Stream call_stream();

/// On a GPU, memory that torch's allocator takes back with `owner`, in the order of the stream, also while a graph is recorded. On the
/// CPU the calling thread's own, grown when needed and kept for the next call.
class Scratch {
 public:
  explicit Scratch(std::size_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  Workspace workspace() const { return workspace_; }

 private:
  std::optional<torch::stable::Tensor> owner_{};  ///< nothing where the allocator gave plain memory
  bool is_plain_ = false;
  Workspace workspace_{};
};

/// A schedule is the workspace of its plan, which several calls share. The CPU has none: every run looks at the lengths anyway.
template <class Plan>
std::int64_t schedule_bytes(const Plan& plan) {
  return call_device().backend == Backend::cpu ? 0 : static_cast<std::int64_t>(plan.workspace_bytes());
}

/// A new tensor of so many bytes on the call's device.
torch::stable::Tensor new_bytes(std::int64_t bytes);

/// The memory of such a tensor; anything else is refused.
Workspace schedule_memory(const torch::stable::Tensor& schedule);

template <class Plan, class Args>
Result<torch::stable::Tensor> prepare(const Plan& plan, const Args& args) {
  torch::stable::Tensor schedule = new_bytes(schedule_bytes(plan));
  if (call_device().backend == Backend::cpu) return schedule;
  if (Result<void> good = plan.prepare(args, schedule_memory(schedule), call_stream()); !good) return good.error();
  return schedule;
}

/// Runs on the call's device. Neither waits nor allocates anything but the workspace, which is the schedule's where one is given.
template <class Plan, class Args>
Result<void> run(const Plan& plan, const Args& args, const std::optional<torch::stable::Tensor>& schedule = std::nullopt) {
  if (schedule && call_device().backend != Backend::cpu) return plan.run_prepared(args, schedule_memory(*schedule), call_stream());
  const Scratch memory(plan.workspace_bytes());
  return plan.run(args, memory.workspace(), call_stream());
}

}  // namespace fovea::binding
