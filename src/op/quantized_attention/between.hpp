// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "op/common/workspace_arena.hpp"
#include "op/quantized_attention/problem.hpp"

namespace fovea::detail {

/// Buffers between the steps of quantize_and_attend, in the workspace. The steps' own workspace is `rest`.
struct Between {
  std::int8_t *q = nullptr, *k = nullptr;
  std::byte *v = nullptr, *rest = nullptr;
  float *q_scale = nullptr, *k_scale = nullptr, *k_mean = nullptr, *lse_shift = nullptr, *v_scale = nullptr, *v_mean = nullptr;

  QuantizeQkInt8Args qk(const QuantizeAndAttendArgs& args) const {
    return {args.q, args.k, q, k, q_scale, k_scale, k_mean, lse_shift, args.cu_seqlens_q, args.cu_seqlens_k};
  }
  QuantizeVArgs values(const QuantizeAndAttendArgs& args) const { return {args.v, v, v_scale, v_mean, args.cu_seqlens_k}; }
  QuantizedAttentionArgs attention(const QuantizeAndAttendArgs& args) const {
    return {q, k, v, args.out, q_scale, k_scale, v_scale, v_mean, args.lse, lse_shift, args.cu_seqlens_q, args.cu_seqlens_k};
  }
};

/// Without a base it only counts bytes.
inline Between map_between(const QuantizeAndAttendProblem& problem, std::size_t rest, std::byte* base, std::size_t* bytes = nullptr) {
  WorkspaceArena arena(base);
  const auto floats = [&](std::int64_t count) { return count > 0 ? arena.take<float>(count) : nullptr; };
  Between b{};
  b.q = arena.take<std::int8_t>(problem.q_int8);
  b.k = arena.take<std::int8_t>(problem.k_int8);
  b.v = arena.take<std::byte>(problem.v_bytes);
  b.q_scale = floats(problem.q_scale);
  b.k_scale = floats(problem.k_scale);
  b.k_mean = floats(problem.k_mean);
  b.lse_shift = floats(problem.lse_shift);
  b.v_scale = floats(problem.v_scale);
  b.v_mean = floats(problem.v_mean);
  b.rest = arena.take<std::byte>(static_cast<std::int64_t>(rest));
  if (bytes != nullptr) *bytes = arena.bytes();
  return b;
}

}  // namespace fovea::detail
