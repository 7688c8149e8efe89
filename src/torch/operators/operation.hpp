// SPDX-License-Identifier: Apache-2.0
/// The operators of an operation: one set of templates over what its file says of it.
///
/// An operation is a struct with
///   Call                     takes the arguments from an Arguments, in the order of the schema; has options()
///   describe(call)           checks the arguments and describes them
///   kPlan                    the library's planning function
///   check(call, desc)        checks what the library does not see, once the description is known to be valid
///   args(desc, addresses)    the arguments of a run from the address of each tensor, in the order of the schema
#pragma once

#include <torch/csrc/stable/library.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "torch/convert/fields.hpp"
#include "torch/plans/held_plan.hpp"

namespace fovea::binding {

/// A kernel, as torch calls it: (stack, number of arguments, number of results). The stack holds the arguments and takes the results.
using Operator = void(StableIValue*, std::uint64_t, std::uint64_t);

/// Operators of an operation. `run` writes into tensors of the caller and returns nothing. The others only read, take the same arguments,
/// and return: `explain` as bytes, which implementation runs and why; `plan` as bytes, the address of a HeldPlan that the caller owns, and
/// its text; `prepare` a tensor for the argument `schedule`, the operation's last. `schedule_bytes` returns the size of that tensor. It
/// takes the device first and tensors without memory after it.
struct Operation {
  std::string schema;
  Operator *run, *explain, *plan;
  RunKnown* run_known;
  Operator *prepare = nullptr, *schedule_bytes = nullptr;
};

std::vector<Operation> attention_operations();
std::vector<Operation> paged_operations();
std::vector<Operation> latent_operations();
std::vector<Operation> latent_cache_operations();
std::vector<Operation> merge_operations();
std::vector<Operation> indexer_operations();
std::vector<Operation> quantized_operations();

/// The library about itself: schemas and kernels.
std::vector<std::pair<std::string, Operator*>> info_operators();

/// `fill_out` and `fill_lse` are for outputs that a function makes: rows that no sequence of a ragged batch has get 0, or -inf.
#define FOVEA_FILLS ", bool fill_out=False, bool fill_lse=False)"

/// The ends of schemas, as Asks has them.
inline constexpr auto kImplementation = ", str implementation)", kGradient = ", str implementation, bool deterministic)",
                      kOptions = ", str implementation, bool batch_invariant" FOVEA_FILLS,
                      kOptionsAndSchedule = ", str implementation, bool batch_invariant, Tensor(c!)? schedule" FOVEA_FILLS;

/// An operation whose table of fields says all. Its file replaces the functions that say more.
template <const auto& table, auto plan_function, Asks asks>
struct OverFields {
  using Call = FieldCall<table, asks>;
  using Desc = typename Call::Desc;
  using Args = typename Call::Args;

  static Desc describe(const Call& call) { return call.describe(); }
  static constexpr auto kPlan = plan_function;
  static void check(const Call& call, const Desc& desc) { call.check_vectors(desc); }
  static Args args(const Desc& desc, void* const* addresses) { return Call::args(desc, addresses); }
};

template <class Op>
auto make_plan(const typename Op::Call& call) {
  const auto desc = Op::describe(call);
  follow_torch_threads();
  Planned made(desc, value_or_raise(Op::kPlan(desc, call_device(), call.options())));
  Op::check(call, made.desc);
  return made;
}

/// The operation's plans in this thread. Running and preparing share them.
template <class Op>
auto& plans_of() {
  thread_local PlanCache<decltype(make_plan<Op>(std::declval<const typename Op::Call&>()))> cache;
  return cache;
}

template <class Op>
const auto& known_plan(const typename Op::Call& call) {
  return plans_of<Op>().get([&] { return make_plan<Op>(call); });
}

/// A RunKnown.
template <class Op>
bool run_known(const KnownCall& call) {
  begin_call();
  CallKey::current().assign(call.key, call.words);
  const auto* const known = plans_of<Op>().find();
  if (known == nullptr) return false;
  const auto args = Op::args(known->desc, call.addresses);
  const bool prepared = call.schedule != nullptr && call_device().backend != Backend::cpu;
  raise_if_failed(prepared ? known->plan.run_prepared(args, {call.schedule, call.schedule_bytes}, call_stream())
                           : binding::run(known->plan, args));
  return true;
}

template <class Op>
void run_operator(StableIValue* stack, std::uint64_t, std::uint64_t) {
  Arguments arguments(stack);
  const typename Op::Call call(arguments);
  const auto& known = known_plan<Op>(call);
  const auto args = Op::args(known.desc, arguments.addresses());
  if constexpr (requires { call.schedule; }) {
    raise_if_failed(binding::run(known.plan, args, call.schedule));
  } else {
    raise_if_failed(binding::run(known.plan, args));
  }
}

template <class Op>
void explain_operator(StableIValue* stack, std::uint64_t, std::uint64_t) {
  Arguments arguments(stack);
  const typename Op::Call call(arguments);
  stack[0] = text_result(make_plan<Op>(call).plan.explain());
}

template <class Op>
void plan_operator(StableIValue* stack, std::uint64_t, std::uint64_t) {
  Arguments arguments(stack);
  const typename Op::Call call(arguments);
  std::unique_ptr<HeldPlan> plan = held_plan<Op>(make_plan<Op>(call));
  stack[0] = text_result(std::to_string(reinterpret_cast<std::intptr_t>(plan.get())) + "\n" + plan->text());
  plan.release();
}

template <class Op>
void prepare_operator(StableIValue* stack, std::uint64_t, std::uint64_t) {
  Arguments arguments(stack);
  const typename Op::Call call(arguments);
  const auto& known = known_plan<Op>(call);
  stack[0] = torch::stable::detail::from(value_or_raise(binding::prepare(known.plan, Op::args(known.desc, arguments.addresses()))));
}

template <class Op>
void schedule_bytes_operator(StableIValue* stack, std::uint64_t, std::uint64_t) {
  Arguments arguments = Arguments::of_planning(stack);
  const typename Op::Call call(arguments);
  stack[0] = torch::stable::detail::from(schedule_bytes(make_plan<Op>(call).plan));
}

template <class Op>
Operation operation(std::string schema) {
  return {std::move(schema), run_operator<Op>, explain_operator<Op>, plan_operator<Op>, run_known<Op>};
}

/// An operation that takes a schedule.
template <class Op>
Operation scheduled_operation(std::string schema) {
  Operation all = operation<Op>(std::move(schema));
  all.prepare = prepare_operator<Op>;
  all.schedule_bytes = schedule_bytes_operator<Op>;
  return all;
}

/// The same arguments, none of which is written.
std::string read_only(std::string arguments);

}  // namespace fovea::binding
