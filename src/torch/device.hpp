// SPDX-License-Identifier: Apache-2.0
/// Where a call runs: the device of its tensors, torch's current stream there, and scratch memory from torch's allocator.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include "fovea/fovea.hpp"

namespace fovea::binding {

/// A new call begins in this thread: its device is not known yet.
void begin_call();

/// The first tensor of a call says its device; all others must agree.
void check_device(const torch::stable::Tensor& tensor, const char* name);

/// The CPU as long as no tensor has said otherwise.
Device call_device();

/// torch's current stream on the call's device; nothing on the CPU.
Stream call_stream();

/// On a GPU, memory that torch's allocator takes back with `owner`, in the order of the stream, also while a graph is recorded. On the
/// CPU the calling thread's own, grown when needed and kept for the next call.
struct Scratch {
  std::optional<torch::stable::Tensor> owner{};
  Workspace workspace{};
};
Scratch scratch(std::size_t bytes);

/// Runs on the call's device. Neither waits nor allocates anything but the workspace.
template <class Plan, class Args>
Result<void> run(const Plan& plan, const Args& args) {
  const Scratch memory = scratch(plan.workspace_bytes());
  return plan.run(args, memory.workspace, call_stream());
}

}  // namespace fovea::binding
