// SPDX-License-Identifier: Apache-2.0
#include "cpu/attention/plan.hpp"

#include "cpu/implementations.hpp"
#include "cpu/quantized_attention/quantize.hpp"
#include "op/quantized_attention/problem.hpp"

namespace fovea::cpu {
namespace {

using detail::QuantizeAndAttendProblem;
using detail::QuantizedAttentionProblem;

Call make_call(const QuantizedAttentionArgs& args) {
  return {.q = args.q,
          .k = args.k,
          .v = args.v,
          .out = args.out,
          .lse = args.lse,
          .q_scale = args.q_scale,
          .k_scale = args.k_scale,
          .v_scale = args.v_scale,
          .v_mean = args.v_mean,
          .lse_shift = args.lse_shift,
          .cu_seqlens_q = args.cu_seqlens_q,
          .cu_seqlens_k = args.cu_seqlens_k};
}

KvStrides in_bytes(const detail::RowStrides& strides, DType dtype) {
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  return {.batch = strides.batch * size, .row = strides.row * size, .head = strides.head * size};
}

template <class Isa>
Setup int8_setup(const QuantizedAttentionProblem& problem) {
  Setup setup = make_setup<Isa>(problem, problem.ragged);
  setup.attention = &Isa::int8();
  setup.tuning = choose_tuning(problem, *setup.attention, setup.threads, problem.ragged);
  setup.tuning.few_rows = 0;  // an operation for prefill: sequences of few rows are packed too
  setup.k = in_bytes(problem.k, problem.kv_dtype);
  setup.v = in_bytes(problem.v, problem.v_dtype);
  setup.int8 =
      Int8{problem.v_dtype, problem.groups, problem.q_scales, problem.k_scales, problem.v_scales, problem.v_means, problem.lse_shift};
  return setup;
}

[[maybe_unused]] const QuantizedAttentionProblem& attention_of(const QuantizedAttentionProblem& problem) { return problem; }
[[maybe_unused]] const QuantizedAttentionProblem& attention_of(const QuantizeAndAttendProblem& problem) { return problem.attention; }

/// A tile multiplies 64 channels of int8, and values as bf16. The conversion to bf16 rounds f16 values, and weights in any case.
[[maybe_unused]] std::optional<Error> decline_on_tiles(const QuantizedAttentionProblem& problem) {
  if (problem.head_dim_qk % 64 != 0) return detail::declined("head_dim", problem.head_dim_qk, "64, 128 or 256");
  const bool e4m3 = problem.v_dtype == DType::e4m3;
  if (problem.out_dtype == DType::bf16 || (e4m3 && problem.out_dtype == DType::f16)) return {};
  return detail::declined("out.dtype", name_of(problem.out_dtype), e4m3 ? "bf16, or f16 with e4m3 v" : "bf16 with f16 v");
}

std::string threads_text(int threads) { return std::to_string(threads) + (threads == 1 ? " thread" : " threads"); }

void compute(const Quantizer& with, const detail::QuantizeQkInt8Problem& problem, const QuantizeQkInt8Args& args) {
  quantize_qk_int8(with, problem, args);
}
void compute(const Quantizer& with, const detail::QuantizeVProblem& problem, const QuantizeVArgs& args) {
  quantize_v(with, problem, args, nullptr);
}

template <class Operation>
class QuantizeState final : public detail::PlanState<typename Operation::Args> {
 public:
  using Problem = typename Operation::Problem;
  using Args = typename Operation::Args;

  QuantizeState(std::string_view name, const Problem& problem, const Kernels& kernels)
      : problem_(problem), with_{&kernels, planned_threads()} {
    this->implementation = name;
  }
  Result<void> prepare(const Args& args, Workspace, Stream) const override { return check(args); }
  Result<void> run(const Args& args, Workspace, Stream, bool) const override {
    if (Result<void> good = check(args); !good) return good;
    compute(with_, problem_, args);
    return {};
  }
  std::string tuning() const override { return "a head of a sequence at a time; " + threads_text(with_.threads); }

 private:
  Result<void> check(const Args& args) const {
    if (Result<void> good = check_args(problem_, args); !good) return good;
    return check_lengths(problem_, args);
  }

  Problem problem_;
  Quantizer with_;
};

class WholeState final : public detail::PlanState<QuantizeAndAttendArgs> {
 public:
  WholeState(std::string_view name, const QuantizeAndAttendProblem& problem, const Setup& setup, const Kernels& kernels)
      : problem_(problem), setup_(setup), with_{&kernels, setup.threads}, attention_bytes_(map_workspace(setup, nullptr).bytes) {
    implementation = name;
    detail::map_between(problem, attention_bytes_, nullptr, &workspace_bytes);
  }
  Result<void> prepare(const QuantizeAndAttendArgs& args, Workspace workspace, Stream) const override { return check(args, workspace); }
  Result<void> run(const QuantizeAndAttendArgs& args, Workspace workspace, Stream, bool) const override {
    if (Result<void> good = check(args, workspace); !good) return good;
    const detail::Between t = detail::map_between(problem_, attention_bytes_, static_cast<std::byte*>(workspace.data));
    quantize_qk_int8(with_, problem_.qk, t.qk(args));
    quantize_v(with_, problem_.v, t.values(args), args.cu_seqlens_q);
    attend(setup_, make_call(t.attention(args)), t.rest);
    return {};
  }
  std::string tuning() const override { return "quantised first; " + describe(setup_); }

 private:
  Result<void> check(const QuantizeAndAttendArgs& args, Workspace workspace) const {
    if (Result<void> good = check_args(problem_, args); !good) return good;
    if (Result<void> good = detail::check_workspace(workspace, workspace_bytes); !good) return good;
    return check_lengths(problem_, args);
  }

  QuantizeAndAttendProblem problem_;
  Setup setup_;
  Quantizer with_;
  std::size_t attention_bytes_;
};

template <class Operation, class Isa>
detail::PlanResult<typename Operation::Args> plan(const typename Operation::Problem& problem, Device) {
  using Plan = std::shared_ptr<const detail::PlanState<typename Operation::Args>>;
  if (auto reason = decline_int8_head_dims(problem)) return *reason;
  if constexpr (requires { Isa::kTiles; }) {
    if (auto reason = decline_on_tiles(attention_of(problem))) return *reason;
  }
  constexpr std::string_view name = kEntryName<Operation, Isa>;
  if constexpr (std::is_same_v<Operation, detail::QuantizedAttention>) {
    using State = AttentionState<QuantizedAttentionProblem, QuantizedAttentionArgs>;
    return Plan(std::make_shared<State>(name, problem, int8_setup<Isa>(problem), make_call));
  } else if constexpr (std::is_same_v<Operation, detail::QuantizeAndAttend>) {
    return Plan(std::make_shared<WholeState>(name, problem, int8_setup<Isa>(problem.attention), Isa::kernels()));
  } else {
    return Plan(std::make_shared<QuantizeState<Operation>>(name, problem, Isa::kernels()));
  }
}

template <class Operation>
constexpr std::string_view kAccepts = "f32, f16, bf16; head dims 64, 96, 128, 256";
template <>
constexpr std::string_view kAccepts<detail::QuantizedAttention> = "int8 q and k, f16 or e4m3 v; head dims 64, 96, 128, 256";
/// The rest, after decline_on_tiles().
constexpr std::string_view kAcceptsOnTiles = "head dims 64, 128, 256; f16 or e4m3 v; out in bf16, or in f16 with e4m3 v";
template <class Operation, class Isa>
constexpr std::string_view accepts() {
  if constexpr (requires { Isa::kTiles; }) {
    return kAcceptsOnTiles;
  } else {
    return kAccepts<Operation>;
  }
}

template <class Operation>
constexpr auto kHandled = detail::handles<detail::QuantizeQkInt8>("ragged", "k_mean", "lse_shift", "groups.granularity",
                                                                  "groups.warp_rows");
template <>
constexpr auto kHandled<detail::QuantizeV> = detail::handles<detail::QuantizeV>("ragged", "v_scale", "v_mean");
template <>
constexpr auto kHandled<detail::QuantizedAttention> = detail::handles<detail::QuantizedAttention>("ragged", "mask.left", "mask.right",
                                                                                                  "mask.anchor (top_left)", "lse",
                                                                                                  "lse_shift", "v_scale", "v_mean",
                                                                                                  "groups.granularity", "groups.warp_rows",
                                                                                                  "options.batch_invariant");
template <>
constexpr auto kHandled<detail::QuantizeAndAttend> = detail::handles<detail::QuantizeAndAttend>("ragged", "mask.left", "mask.right",
                                                                                                "mask.anchor (top_left)", "lse",
                                                                                                "v_dtype (e4m3)", "smooth_k", "smooth_v",
                                                                                                "groups.granularity", "groups.warp_rows",
                                                                                                "options.batch_invariant");

template <class Operation, class Sets>
constexpr auto kEntries = Sets::each([]<class Isa>() {
  return entry<Operation, Isa>(accepts<Operation, Isa>(), kHandled<Operation>, plan<Operation, Isa>);
});

}  // namespace

detail::Implementations<detail::QuantizeQkInt8> implementations(detail::QuantizeQkInt8) {
  return kEntries<detail::QuantizeQkInt8, RowSets>;
}
detail::Implementations<detail::QuantizeV> implementations(detail::QuantizeV) { return kEntries<detail::QuantizeV, RowSets>; }
detail::Implementations<detail::QuantizedAttention> implementations(detail::QuantizedAttention) {
  return kEntries<detail::QuantizedAttention, Int8Sets>;
}
detail::Implementations<detail::QuantizeAndAttend> implementations(detail::QuantizeAndAttend) {
  return kEntries<detail::QuantizeAndAttend, Int8Sets>;
}

}  // namespace fovea::cpu
