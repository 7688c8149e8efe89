// SPDX-License-Identifier: Apache-2.0
#include "latent_cache.hpp"
#include "operators.hpp"

namespace fovea::binding {
namespace {

struct Call {
  Tensor q, cache;
  std::string format;
  Tensor block_table;
  OptionalTensor cu_seqlens_q;
  Tensor kv_len, out;
  OptionalTensor lse;
  std::int64_t max_seqlen_q, max_kv_len;
  BandMask mask;
  double scale;
  OptionalTensor cache_scale;
  PlanOptions options;
  OptionalTensor schedule;

  bool ragged() const { return q.dim() == 3; }
};

/// `implementation` keeps the text that the options refer to.
Call take_call(Arguments arguments, std::string& implementation) {
  Call call{.q = arguments.tensor(),
            .cache = arguments.tensor(),
            .format = arguments.text(),
            .block_table = arguments.tensor(),
            .cu_seqlens_q = arguments.optional_tensor(),
            .kv_len = arguments.tensor(),
            .out = arguments.tensor(),
            .lse = arguments.optional_tensor(),
            .max_seqlen_q = arguments.integer(),
            .max_kv_len = arguments.integer(),
            .mask = arguments.band(),
            .scale = arguments.real(),
            .cache_scale = arguments.optional_tensor(),
            .options = {},
            .schedule = {}};
  implementation = arguments.text();
  call.options = {.implementation = implementation, .batch_invariant = arguments.flag()};
  call.schedule = arguments.optional_tensor();
  return call;
}

LatentAttentionPlan make_plan(const Call& call) {
  LatentAttentionDesc desc{.q = describe(call.q, "q"),
                           .out = describe(call.out, "out"),
                           .block_table = describe(call.block_table, "block_table"),
                           .cache = describe_cache(call.cache, call.format, "cache"),
                           .lse = describe(call.lse, "lse"),
                           .max_seq_q = call.max_seqlen_q,
                           .max_kv_len = call.max_kv_len,
                           .mask = call.mask,
                           .scale = narrow(call.scale, "scale"),
                           .has_scale = describe_scale(call.cache_scale, "cache_scale", 0, 1).has_value()};
  if (call.ragged()) {
    desc.max_seq_q = query_bound(call.cu_seqlens_q, call.max_seqlen_q, desc.q.shape[0], desc.block_table.shape[0]);
  } else if (call.cu_seqlens_q) {
    raise_invalid("q.rank", std::to_string(desc.q.rank), "3 ([total_q, head, d]), as cu_seqlens_q is given");
  } else if (call.max_seqlen_q != 0) {
    raise_invalid("max_seqlen_q", std::to_string(call.max_seqlen_q), "0 (none), as q has a batch");
  }
  follow_torch_threads();
  return value_or_raise(plan_latent_attention(desc, call_device(), call.options));
}

LatentAttentionArgs make_args(const Call& call) {
  const std::int64_t batch = call.block_table.size(0);
  return {.q = data(call.q),
          .cache = data(call.cache),
          .out = data(call.out),
          .lse = data_or_null<float>(call.lse),
          .block_table = static_cast<const std::int32_t*>(data(call.block_table)),
          .cu_seqlens_q = call.ragged() ? query_lengths(call.cu_seqlens_q, batch) : nullptr,
          .kv_len = int32_vector(call.kv_len, "kv_len", batch),
          .cache_scale = data_or_null<const float>(call.cache_scale)};
}

}  // namespace

void latent_attention(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::string implementation;
  const Call call = take_call(Arguments(stack), implementation);
  const LatentAttentionPlan plan = make_plan(call);
  raise_if_failed(binding::run(plan, make_args(call), call.schedule));
}

void explain_latent_attention(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::string implementation;
  stack[0] = text_result(make_plan(take_call(Arguments(stack), implementation)).explain());
}

void prepare_latent_attention(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::string implementation;
  const Call call = take_call(Arguments(stack), implementation);
  const LatentAttentionPlan plan = make_plan(call);
  stack[0] = torch::stable::detail::from(value_or_raise(binding::prepare(plan, make_args(call))));
}

void schedule_bytes_latent_attention(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::string implementation;
  stack[0] = torch::stable::detail::from(schedule_bytes(make_plan(take_call(Arguments::of_planning(stack), implementation))));
}

}  // namespace fovea::binding
