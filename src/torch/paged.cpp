// SPDX-License-Identifier: Apache-2.0
#include "arguments.hpp"
#include "operators.hpp"

namespace fovea::binding {
namespace {

struct AttentionCall {
  Tensor q, k_cache, v_cache, block_table;
  OptionalTensor cu_seqlens_q;
  Tensor kv_len, out;
  OptionalTensor lse;
  std::int64_t max_seqlen_q, max_kv_len;
  BandMask mask;
  double scale, softcap;
  OptionalTensor sink, k_scale, v_scale;
  PlanOptions options;
};

struct AppendCall {
  Tensor k, v, k_cache, v_cache, slot_mapping;
  OptionalTensor k_scale, v_scale;
  PlanOptions options;
};

/// `implementation` keeps the text that the options refer to.
AttentionCall take_attention(Arguments arguments, std::string& implementation) {
  AttentionCall call{.q = arguments.tensor(),
                     .k_cache = arguments.tensor(),
                     .v_cache = arguments.tensor(),
                     .block_table = arguments.tensor(),
                     .cu_seqlens_q = arguments.optional_tensor(),
                     .kv_len = arguments.tensor(),
                     .out = arguments.tensor(),
                     .lse = arguments.optional_tensor(),
                     .max_seqlen_q = arguments.integer(),
                     .max_kv_len = arguments.integer(),
                     .mask = arguments.band(),
                     .scale = arguments.real(),
                     .softcap = arguments.real(),
                     .sink = arguments.optional_tensor(),
                     .k_scale = arguments.optional_tensor(),
                     .v_scale = arguments.optional_tensor(),
                     .options = {}};
  implementation = arguments.text();
  call.options = {.implementation = implementation, .batch_invariant = arguments.flag()};
  return call;
}

AppendCall take_append(Arguments arguments, std::string& implementation) {
  AppendCall call{.k = arguments.tensor(),
                  .v = arguments.tensor(),
                  .k_cache = arguments.tensor(),
                  .v_cache = arguments.tensor(),
                  .slot_mapping = arguments.tensor(),
                  .k_scale = arguments.optional_tensor(),
                  .v_scale = arguments.optional_tensor(),
                  .options = {}};
  implementation = arguments.text();
  call.options = {.implementation = implementation};
  return call;
}

PagedAttentionPlan make_plan(const AttentionCall& call) {
  PagedAttentionDesc desc{.q = describe(call.q, "q"),
                          .k_cache = describe(call.k_cache, "k_cache"),
                          .v_cache = describe(call.v_cache, "v_cache"),
                          .block_table = describe(call.block_table, "block_table"),
                          .out = describe(call.out, "out"),
                          .lse = describe(call.lse, "lse"),
                          .max_kv_len = call.max_kv_len,
                          .mask = call.mask,
                          .scale = narrow(call.scale, "scale"),
                          .softcap = narrow(call.softcap, "softcap"),
                          .has_sink = call.sink.has_value()};
  desc.max_seq_q = query_bound(call.cu_seqlens_q, call.max_seqlen_q, desc.q.shape[0], desc.block_table.shape[0]);
  desc.k_scale = describe_scale(call.k_scale, "k_scale", 0, desc.k_cache.shape[2]);
  desc.v_scale = describe_scale(call.v_scale, "v_scale", 0, desc.k_cache.shape[2]);
  follow_torch_threads();
  return value_or_raise(plan_paged_attention(desc, call_device(), call.options));
}

PagedCacheAppendPlan make_plan(const AppendCall& call) {
  PagedCacheAppendDesc desc{.k = describe(call.k, "k"),
                            .v = describe(call.v, "v"),
                            .k_cache = describe(call.k_cache, "k_cache"),
                            .v_cache = describe(call.v_cache, "v_cache")};
  desc.k_scale = describe_scale(call.k_scale, "k_scale", 0, desc.k_cache.shape[2]);
  desc.v_scale = describe_scale(call.v_scale, "v_scale", 0, desc.k_cache.shape[2]);
  follow_torch_threads();
  return value_or_raise(plan_paged_cache_append(desc, call_device(), call.options));
}

}  // namespace

void paged_attention(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::string implementation;
  const AttentionCall call = take_attention(Arguments(stack), implementation);
  const PagedAttentionPlan plan = make_plan(call);
  const PagedAttentionArgs args{.q = data(call.q),
                                .k_cache = data(call.k_cache),
                                .v_cache = data(call.v_cache),
                                .out = data(call.out),
                                .lse = data_or_null<float>(call.lse),
                                .sink = float_vector(call.sink, "sink", call.q.size(1)),
                                .block_table = static_cast<const std::int32_t*>(data(call.block_table)),
                                .cu_seqlens_q = query_lengths(call.cu_seqlens_q, call.block_table.size(0)),
                                .kv_len = int32_vector(call.kv_len, "kv_len", call.block_table.size(0)),
                                .k_scale = data_or_null<const float>(call.k_scale),
                                .v_scale = data_or_null<const float>(call.v_scale)};
  raise_if_failed(binding::run(plan, args));
}

void explain_paged_attention(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::string implementation;
  stack[0] = text_result(make_plan(take_attention(Arguments(stack), implementation)).explain());
}

void paged_cache_append(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::string implementation;
  const AppendCall call = take_append(Arguments(stack), implementation);
  const PagedCacheAppendPlan plan = make_plan(call);
  const PagedCacheAppendArgs args{.k = data(call.k),
                                  .v = data(call.v),
                                  .k_cache = data(call.k_cache),
                                  .v_cache = data(call.v_cache),
                                  .slot_mapping = int64_vector(call.slot_mapping, "slot_mapping", call.k.size(0)),
                                  .k_scale = data_or_null<const float>(call.k_scale),
                                  .v_scale = data_or_null<const float>(call.v_scale)};
  raise_if_failed(binding::run(plan, args));
}

void explain_paged_cache_append(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::string implementation;
  stack[0] = text_result(make_plan(take_append(Arguments(stack), implementation)).explain());
}

}  // namespace fovea::binding
