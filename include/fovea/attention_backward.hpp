// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/attention.hpp"

namespace fovea {

/// Gradients of attention: from q, k, v, out, lse and their gradients dout and dlse to dq, dk, dv and, where there was a sink, dsink.
///
/// The fields of `forward` describe the forward pass (its lse is required; fixed or ragged; f32 (CPU), f16, bf16 or f64; no e4m3). dq has
/// the shape of q, dk of k, dv of v, dout of out. Each has strides of its own and the dtype of its counterpart. dk and dv are summed over
/// the query heads of a group. dlse, of what also depends on lse, is f32 in lse's shape, with any strides; absent means zeros. Head dims as
/// forward, 192/128 without padding V. Rows of no sequence are not written. dk and dv are the same bits from run to run, and so is dq
/// with PlanOptions::deterministic. No workspace grows with the square of a length. Source: FlashAttention-2 (Dao 2023), algorithm 2; with
/// a softcap c, ds gains the factor 1 - (s / c)^2.
struct AttentionBackwardDesc {
  AttentionDesc forward{};
  TensorDesc dout{}, dq{}, dk{}, dv{};
  std::optional<TensorDesc> dlse{};
  std::optional<TensorDesc> dbias{};  ///< shape and dtype of the bias, any strides: the sum over what the bias is broadcast to
};

struct AttentionBackwardArgs {
  AttentionArgs forward{};  ///< out and lse are inputs here
  const void* dout = nullptr;
  void* dq = nullptr;
  void* dk = nullptr;
  void* dv = nullptr;
  float* dsink = nullptr;  ///< [head], if there was a sink
  const float* dlse = nullptr;
  void* dbias = nullptr;
};

using AttentionBackwardPlan = Plan<AttentionBackwardArgs>;

Result<AttentionBackwardPlan> plan_attention_backward(const AttentionBackwardDesc& desc, Device device = {},
                                                      const PlanOptions& options = {});

}  // namespace fovea
