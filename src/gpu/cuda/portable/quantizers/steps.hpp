// SPDX-License-Identifier: Apache-2.0
/// The host's side of the quantisers, for their plans and for the plan of all steps in one.
#pragma once

#include "fovea/plan.hpp"
#include "gpu/cuda/portable/quantizers/params.hpp"
#include "gpu/runtime.hpp"
#include "op/quantized_attention/problem.hpp"

namespace fovea::gpu::portable::quantizers {

/// Kernels for elements of a dtype. instances/ define them.
struct Kernels {
  using Int8 = void (*)(Int8Params);
  using Channels = void (*)(ChannelParams);
  Int8 int8[4];  ///< of head dims 64, 96, 128 and 256
  Channels look_at_channels, values_as_f16, values_as_e4m3;
};
extern const Kernels kHalfKernels, kBfloatKernels;

/// Why a quantiser declines, or nothing.
std::optional<Error> why_not(const detail::QuantizeQkInt8Problem& problem);
std::optional<Error> why_not(const detail::QuantizeVProblem& problem);

std::size_t workspace_bytes(const detail::QuantizeQkInt8Problem& problem);
std::size_t workspace_bytes(const detail::QuantizeVProblem& problem);

// These launch on the current device. Arguments have been checked, and a result has elements. A ragged batch with a mask needs the
// lengths of its queries for V too.

Result<void> launch_quantize(const detail::QuantizeQkInt8Problem& problem, const QuantizeQkInt8Args& args, void* workspace, Stream stream);
Result<void> launch_quantize(const detail::QuantizeVProblem& problem, const QuantizeVArgs& args, const std::int32_t* cu_seqlens_q,
                             void* workspace, Stream stream);

}  // namespace fovea::gpu::portable::quantizers
