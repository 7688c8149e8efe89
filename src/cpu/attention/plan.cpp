// SPDX-License-Identifier: Apache-2.0
#include "cpu/attention/plan.hpp"

#include "cpu/implementations.hpp"
#include "op/attention/problem.hpp"

namespace fovea::cpu {
namespace {

using detail::AttentionProblem;

Call make_call(const AttentionArgs& args) {
  Call call = common_call(args);
  call.k = args.k;
  call.v = args.v;
  call.q_scale = args.q_scale;
  call.alibi_slopes = args.alibi_slopes;
  call.bias = args.bias;
  call.dropout_state = args.dropout_state;
  call.cu_seqlens_k = args.cu_seqlens_k;
  call.blocks = block_args(args);
  call.packed_mask = {args.packed_mask, args.mask_indptr};
  return call;
}

KvStrides in_bytes(const detail::RowStrides& strides, DType dtype) {
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  return {.batch = strides.batch * size, .row = strides.row * size, .head = strides.head * size};
}

template <class Isa>
detail::PlanResult<AttentionArgs> plan(const AttentionProblem& problem, Device) {
  if (auto reason = decline_dense(problem)) return *reason;
  Setup setup = make_setup<Isa>(problem, problem.ragged);
  setup.q_scale = problem.q_scale;
  setup.blocks = block_lists(problem);
  if (setup.blocks) setup.tuning.few_rows = 0;  // packed tiles alone have lists
  setup.k = in_bytes(problem.k, problem.kv_dtype);
  setup.v = in_bytes(problem.v, problem.kv_dtype);
  using State = AttentionState<AttentionProblem, AttentionArgs>;
  return std::shared_ptr<const detail::PlanState<AttentionArgs>>(
      std::make_shared<State>(kEntryName<detail::Attention, Isa>, problem, setup, make_call));
}

constexpr std::string_view kAccepts = "f32, f16, bf16, e4m3; head dims that are multiples of 8 up to 512";
constexpr auto kHandled = detail::handles<detail::Attention>(kEngineOptions, "options.exact_rows");

constexpr auto kEntries = Bf16Sets::each([]<class Isa>() { return entry<detail::Attention, Isa>(kAccepts, kHandled, plan<Isa>); });

}  // namespace

std::string describe(const Setup& setup) {
  const Tuning& t = setup.tuning;
  const auto text = [](auto number) { return std::to_string(number); };
  return std::string(setup.attention->arithmetic) + " " + text(setup.attention->block_rows) + "x" + text(setup.attention->panel) +
         " micro-kernel; up to " + text(t.few_rows) + " rows " +
         (t.packs_few ? "of several heads" : "streamed by " + text(t.stream_tile) + " keys") + ", more packed " + text(t.q_rows) +
         " rows x " + text(t.kv_tile) + " keys; up to " + text(t.split_rows) + " rows split every " + text(t.split_keys) + " keys; " +
         (setup.core.exact_rows ? "exact rows; " : "") + text(setup.threads) + (setup.threads == 1 ? " thread" : " threads");
}

detail::Implementations<detail::Attention> implementations(detail::Attention) { return kEntries; }

}  // namespace fovea::cpu
