// SPDX-License-Identifier: Apache-2.0
#include "latent_cache.hpp"
#include "operators.hpp"
#include "repeatable_call.hpp"

namespace fovea::binding {
namespace {

/// A cache and the tokens of it that each query row reads.
struct Selection {
  Tensor cache;
  std::string format;
  Tensor indices;
  OptionalTensor topk_length;
};

/// The second one, as torch gives it.
struct ExtraSelection {
  OptionalTensor cache;
  std::string format;
  OptionalTensor indices, topk_length;

  std::optional<Selection> checked() const {
    if (cache && indices) return Selection{*cache, format, *indices, topk_length};
    if (cache) raise_invalid("extra_indices", "none", "a tensor, as extra_cache is given");
    if (indices || topk_length) raise_invalid("extra_cache", "none", "a tensor, as extra_indices or extra_topk_length is given");
    if (format != "rows") raise_invalid("extra_cache", "none", "a tensor, as extra_format is given");
    return std::nullopt;
  }
};

struct Call {
  Tensor q;
  Selection main;
  ExtraSelection extra;
  Tensor out;
  OptionalTensor lse, max_logits;
  double scale;
  OptionalTensor sink;
  PlanOptions options;
  OptionalTensor schedule;
};

Selection take_main(Arguments& arguments) {
  return {
      .cache = arguments.tensor(), .format = arguments.text(), .indices = arguments.tensor(), .topk_length = arguments.optional_tensor()};
}

ExtraSelection take_extra(Arguments& arguments) {
  return {.cache = arguments.optional_tensor(),
          .format = arguments.text(),
          .indices = arguments.optional_tensor(),
          .topk_length = arguments.optional_tensor()};
}

/// `implementation` keeps the text that the options refer to.
Call take_call(Arguments arguments, std::string& implementation) {
  Call call{.q = arguments.tensor(),
            .main = take_main(arguments),
            .extra = take_extra(arguments),
            .out = arguments.tensor(),
            .lse = arguments.optional_tensor(),
            .max_logits = arguments.optional_tensor(),
            .scale = arguments.real(),
            .sink = arguments.optional_tensor(),
            .options = {},
            .schedule = {}};
  implementation = arguments.text();
  call.options = {.implementation = implementation, .batch_invariant = arguments.flag()};
  call.schedule = arguments.optional_tensor();
  return call;
}

SparseLatentAttentionDesc::Selection describe_selection(const Selection& from, const char* cache, const char* indices) {
  return {.cache = describe_cache(from.cache, from.format, cache),
          .indices = describe(from.indices, indices),
          .has_topk_length = from.topk_length.has_value()};
}

auto make_plan(const Call& call) {
  SparseLatentAttentionDesc desc{.q = describe(call.q, "q"),
                                 .out = describe(call.out, "out"),
                                 .main = describe_selection(call.main, "main.cache", "main.indices"),
                                 .lse = describe(call.lse, "lse"),
                                 .max_logits = describe(call.max_logits, "max_logits"),
                                 .scale = narrow(call.scale, "scale"),
                                 .has_sink = call.sink.has_value()};
  if (const auto extra = call.extra.checked()) desc.extra = describe_selection(*extra, "extra.cache", "extra.indices");
  follow_torch_threads();
  return Planned(desc, value_or_raise(plan_sparse_latent_attention(desc, call_device(), call.options)));
}

/// Attending and preparing share their plans.
const auto& prepared(const Call& call) {
  return remembered([&] { return make_plan(call); });
}

/// topk_length has one number for each row (flat) or sequence (paged): the first dimension of q.
SparseLatentAttentionArgs::Selection selection_args(const Selection& from, const char* topk_length, std::int64_t lists) {
  return {.cache = data(from.cache),
          .indices = static_cast<const std::int32_t*>(data(from.indices)),
          .topk_length = from.topk_length ? int32_vector(*from.topk_length, topk_length, lists) : nullptr};
}

SparseLatentAttentionArgs make_args(const Call& call) {
  const std::int64_t lists = call.q.size(0);
  SparseLatentAttentionArgs args{.q = data(call.q),
                                 .out = data(call.out),
                                 .main = selection_args(call.main, "main.topk_length", lists),
                                 .lse = data_or_null<float>(call.lse),
                                 .max_logits = data_or_null<float>(call.max_logits),
                                 .sink = float_vector(call.sink, "sink", call.q.size(call.q.dim() - 2))};
  if (const auto extra = call.extra.checked()) args.extra = selection_args(*extra, "extra.topk_length", lists);
  return args;
}

/// In the order of the schema.
SparseLatentAttentionArgs args_at(const SparseLatentAttentionDesc& desc, void* const* addresses) {
  const auto next = [&] { return *addresses++; };
  const auto next_selection = [&]() -> SparseLatentAttentionArgs::Selection {
    void* const cache = next();
    const auto* indices = static_cast<const std::int32_t*>(next());
    return {.cache = cache, .indices = indices, .topk_length = static_cast<const std::int32_t*>(next())};
  };
  SparseLatentAttentionArgs args{};
  args.q = next();
  args.main = next_selection();
  const SparseLatentAttentionArgs::Selection extra = next_selection();
  if (desc.extra) args.extra = extra;
  args.out = next();
  args.lse = static_cast<float*>(next());
  args.max_logits = static_cast<float*>(next());
  args.sink = static_cast<const float*>(next());
  return args;
}

constexpr int kSchedule = 11;  // tensors before it in the schema

}  // namespace

void sparse_latent_attention(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::string implementation;
  const Call call = take_call(Arguments(stack), implementation);
  const auto& kept = prepared(call);
  raise_if_failed(binding::run(kept.plan, make_args(call), call.schedule));
  may_be_repeated<args_at, kSchedule>(kept);
}

void explain_sparse_latent_attention(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::string implementation;
  stack[0] = text_result(make_plan(take_call(Arguments(stack), implementation)).plan.explain());
}

void prepare_sparse_latent_attention(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::string implementation;
  const Call call = take_call(Arguments(stack), implementation);
  const auto& [desc, plan, device] = prepared(call);
  stack[0] = torch::stable::detail::from(value_or_raise(binding::prepare(plan, make_args(call))));
}

void schedule_bytes_sparse_latent_attention(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::string implementation;
  stack[0] = torch::stable::detail::from(schedule_bytes(make_plan(take_call(Arguments::of_planning(stack), implementation)).plan));
}

}  // namespace fovea::binding
