// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/kernels.hpp"
#include "op/quantized_attention/problem.hpp"

namespace fovea::cpu {

/// The tables and threads of a quantiser.
struct Quantizer {
  const Kernels* kernels = nullptr;
  int threads = 1;
};

/// Compute calls whose arguments have been checked. They read `cu_seqlens_q` if a ragged problem has a mask.
void quantize_qk_int8(const Quantizer& with, const detail::QuantizeQkInt8Problem& problem, const QuantizeQkInt8Args& args);
void quantize_v(const Quantizer& with, const detail::QuantizeVProblem& problem, const QuantizeVArgs& args,
                const std::int32_t* cu_seqlens_q);

}  // namespace fovea::cpu
