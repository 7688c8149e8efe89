// SPDX-License-Identifier: Apache-2.0
#include "arguments.hpp"
#include "operators.hpp"

namespace fovea::binding {
namespace {

struct Call {
  Tensor q, k, v, out;
  OptionalTensor lse, cu_seqlens_q, cu_seqlens_k;
  std::int64_t max_seqlen_q, max_seqlen_k;  // -1: not given
  BandMask mask;
  float scale, softcap;
  OptionalTensor sink, q_scale, k_scale, v_scale;
  PlanOptions options;
};

BandMask take_mask(Arguments& arguments) {
  const std::int64_t left = arguments.integer_or(kUnbounded);
  const std::int64_t right = arguments.integer_or(kUnbounded);
  return {.left = left, .right = right, .anchor = arguments.flag() ? Anchor::top_left : Anchor::bottom_right};
}

/// `implementation` keeps the text that the options refer to.
Call take_call(Arguments arguments, std::string& implementation) {
  Call call{.q = arguments.tensor(),
            .k = arguments.tensor(),
            .v = arguments.tensor(),
            .out = arguments.tensor(),
            .lse = arguments.optional_tensor(),
            .cu_seqlens_q = arguments.optional_tensor(),
            .cu_seqlens_k = arguments.optional_tensor(),
            .max_seqlen_q = arguments.integer_or(-1),
            .max_seqlen_k = arguments.integer_or(-1),
            .mask = take_mask(arguments),
            .scale = arguments.real(),
            .softcap = arguments.real(),
            .sink = arguments.optional_tensor(),
            .q_scale = arguments.optional_tensor(),
            .k_scale = arguments.optional_tensor(),
            .v_scale = arguments.optional_tensor(),
            .options = {}};
  implementation = arguments.text();
  call.options = {.implementation = implementation, .batch_invariant = arguments.flag()};
  return call;
}

/// Without a bound from the caller, the longest sequence is at most all rows together.
std::optional<RaggedDesc> describe_ragged(const Call& call) {
  if (!call.cu_seqlens_q && !call.cu_seqlens_k) return std::nullopt;
  if (!call.cu_seqlens_q || !call.cu_seqlens_k) {
    const bool q_given = call.cu_seqlens_q.has_value();
    raise_invalid(q_given ? "cu_seqlens_k" : "cu_seqlens_q", "none",
                  q_given ? "a tensor, as cu_seqlens_q is given" : "a tensor, as cu_seqlens_k is given");
  }
  if (call.cu_seqlens_q->dim() != 1 || call.cu_seqlens_q->size(0) < 1) {
    raise_invalid("cu_seqlens_q.shape", "another rank or no element", "[batch + 1]");
  }
  const auto rows = [](const Tensor& tensor) { return tensor.dim() > 0 ? tensor.size(0) : 0; };
  return RaggedDesc{.batch = call.cu_seqlens_q->size(0) - 1,
                    .max_seq_q = call.max_seqlen_q < 0 ? rows(call.q) : call.max_seqlen_q,
                    .max_seq_k = call.max_seqlen_k < 0 ? rows(call.k) : call.max_seqlen_k};
}

AttentionPlan make_plan(const Call& call, const std::optional<RaggedDesc>& ragged) {
  AttentionDesc desc{.q = describe(call.q, "q"),
                     .k = describe(call.k, "k"),
                     .v = describe(call.v, "v"),
                     .out = describe(call.out, "out"),
                     .lse = describe(call.lse, "lse"),
                     .ragged = ragged,
                     .mask = call.mask,
                     .scale = call.scale,
                     .softcap = call.softcap,
                     .has_sink = call.sink.has_value()};
  const std::int64_t batch = ragged ? ragged->batch : desc.q.shape[0];
  const std::int64_t kv_head = desc.k.rank >= 2 ? desc.k.shape[static_cast<std::size_t>(desc.k.rank - 2)] : 0;
  desc.q_scale = describe_scale(call.q_scale, "q_scale", batch, kv_head);
  desc.k_scale = describe_scale(call.k_scale, "k_scale", batch, kv_head);
  desc.v_scale = describe_scale(call.v_scale, "v_scale", batch, kv_head);
  follow_torch_threads();
  return value_or_raise(plan_attention(desc, {}, call.options));
}

}  // namespace

void attention(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::string implementation;
  const Call call = take_call(Arguments(stack), implementation);
  const std::optional<RaggedDesc> ragged = describe_ragged(call);
  const AttentionPlan plan = make_plan(call, ragged);
  AttentionArgs args{.q = data(call.q),
                     .k = data(call.k),
                     .v = data(call.v),
                     .out = data(call.out),
                     .lse = data_or_null<float>(call.lse),
                     .sink = float_vector(call.sink, "sink", call.q.size(call.q.dim() - 2)),
                     .q_scale = data_or_null<const float>(call.q_scale),
                     .k_scale = data_or_null<const float>(call.k_scale),
                     .v_scale = data_or_null<const float>(call.v_scale)};
  if (ragged) {
    args.cu_seqlens_q = int32_vector(*call.cu_seqlens_q, "cu_seqlens_q", ragged->batch + 1);
    args.cu_seqlens_k = int32_vector(*call.cu_seqlens_k, "cu_seqlens_k", ragged->batch + 1);
  }
  raise_if_failed(plan.run(args, workspace(plan.workspace_bytes())));
}

void explain_attention(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::string implementation;
  const Call call = take_call(Arguments(stack), implementation);
  stack[0] = torch::stable::detail::from(make_plan(call, describe_ragged(call)).explain());
}

}  // namespace fovea::binding
