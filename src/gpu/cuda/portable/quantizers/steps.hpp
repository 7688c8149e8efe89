// SPDX-License-Identifier: Apache-2.0
/// The host's side of the quantisers, for their plans and for the plan of all steps in one.
#pragma once

#include "fovea/plan.hpp"
#include "gpu/cuda/portable/quantizers/params.hpp"
#include "gpu/runtime.hpp"
#include "op/quantized_attention/problem.hpp"

namespace fovea::gpu::portable::quantizers {

/// Kernels for elements of a dtype, of head dims 64, 96, 128 and 256 (kernel.cu).
struct Kernels {
  using Kernel = void (*)(Params);
  Kernel aligned[4], any[4];
};
extern const Kernels kHalfKernels, kBfloatKernels;

/// Why a quantiser declines, or nothing.
std::optional<Error> why_not(const detail::QuantizeQkInt8Problem& problem);
std::optional<Error> why_not(const detail::QuantizeVProblem& problem);

/// The tensors of one launch: q and k, v, or all three, of one batch and head dim; null is left out. A ragged batch with a mask
/// needs the lengths of its queries for v too. `v_in_tiles`: v_out takes value tiles (gpu/cuda/common/value_tiles.hpp), of e4m3 and head
/// dims up to 128.
struct Tensors {
  const detail::QuantizeQkInt8Problem* qk = nullptr;
  const detail::QuantizeVProblem* v = nullptr;
  QuantizeQkInt8Args qk_args{};
  QuantizeVArgs v_args{};
  const std::int32_t* cu_seqlens_q = nullptr;
  bool v_in_tiles = false;
};

/// Without arguments.
std::size_t workspace_bytes(const Tensors& tensors);
/// Launches on the current device, whose properties are given. Arguments have been checked, and a result has elements.
Result<void> launch_quantize(const Tensors& tensors, const DeviceProperties& device, void* workspace, Stream stream);

}  // namespace fovea::gpu::portable::quantizers
