// SPDX-License-Identifier: Apache-2.0
#include "cpu/attention/plan.hpp"

#include "cpu/attention_backward/setup.hpp"
#include "cpu/implementations.hpp"
#include "op/attention_backward/problem.hpp"

namespace fovea::cpu {
namespace {

using detail::AttentionBackwardProblem;

BackwardCall make_call(const AttentionBackwardArgs& args) {
  BackwardCall call{.forward = common_call(args.forward),
                    .dout = args.dout,
                    .dlse = args.dlse,
                    .dq = args.dq,
                    .dk = args.dk,
                    .dv = args.dv,
                    .dsink = args.dsink,
                    .dbias = args.dbias};
  call.forward.k = args.forward.k;
  call.forward.v = args.forward.v;
  call.forward.cu_seqlens_k = args.forward.cu_seqlens_k;
  call.forward.alibi_slopes = args.forward.alibi_slopes;
  call.forward.bias = args.forward.bias;
  call.forward.dropout_state = args.forward.dropout_state;
  call.forward.blocks = block_args(args.forward);
  call.forward.packed_mask = {args.forward.packed_mask, args.forward.mask_indptr};
  return call;
}

class State final : public detail::PlanState<AttentionBackwardArgs> {
 public:
  State(std::string_view name, const AttentionBackwardProblem& problem, const BackwardSetup& setup) : problem_(problem), setup_(setup) {
    implementation = name;
    workspace_bytes = map_backward_workspace(setup, nullptr).bytes;
  }

  Result<void> prepare(const AttentionBackwardArgs& args, Workspace workspace, Stream) const override { return check(args, workspace); }

  Result<void> run(const AttentionBackwardArgs& args, Workspace workspace, Stream, bool) const override {
    if (Result<void> good = check(args, workspace); !good) return good;
    attend_backward(setup_, make_call(args), static_cast<std::byte*>(workspace.data));
    return {};
  }

  std::string tuning() const override {
    const AttentionKernels& kernels = *setup_.forward.attention;
    const auto text = [](auto number) { return std::to_string(number); };
    return std::string(kernels.arithmetic) + " " + text(kernels.block_rows) + "x" + text(kernels.panel) + " micro-kernel; " +
           text(setup_.tuning.kv_tile) + " keys x " + text(setup_.tuning.q_tile) + " queries, " + text(setup_.tuning.chunk_keys) +
           " keys a step; " + text(setup_.forward.threads) + (setup_.forward.threads == 1 ? " thread" : " threads");
  }

 private:
  Result<void> check(const AttentionBackwardArgs& args, Workspace workspace) const {
    if (Result<void> good = detail::check_args(problem_, args); !good) return good;
    if (Result<void> good = detail::check_workspace(workspace, workspace_bytes); !good) return good;
    return detail::check_lengths(problem_, args.forward);
  }

  AttentionBackwardProblem problem_;
  BackwardSetup setup_;
};

detail::RowStrides in_bytes(const detail::RowStrides& strides, DType dtype) {
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  return {.batch = strides.batch * size, .row = strides.row * size, .head = strides.head * size};
}

template <class Isa>
detail::PlanResult<AttentionBackwardArgs> plan(const AttentionBackwardProblem& problem, Device) {
  if (auto reason = decline_dense(problem)) return *reason;
  const auto bytes = [&](const detail::RowStrides& strides) { return in_bytes(strides, problem.q_dtype); };
  BackwardSetup setup{.forward = make_setup<Isa>(problem, problem.ragged), .total_k = problem.total_k};
  setup.q = bytes(problem.q);
  setup.k = bytes(problem.k);
  setup.v = bytes(problem.v);
  setup.out = bytes(problem.out);
  setup.dout = bytes(problem.dout);
  setup.dq = bytes(problem.dq);
  setup.dk = bytes(problem.dk);
  setup.dv = bytes(problem.dv);
  setup.dlse = problem.dlse;
  setup.dbias = problem.dbias;
  setup.dbias_extents = problem.dbias_extents;
  setup.dbias_elements = problem.dbias_elements;
  setup.forward.blocks = block_lists(problem);
  setup.forward.threads = backward_threads(problem);
  setup.tuning = choose_backward_tuning(problem, *setup.forward.attention, problem.block_k);
  return std::shared_ptr<const detail::PlanState<AttentionBackwardArgs>>(
      std::make_shared<State>(kEntryName<detail::AttentionBackward, Isa>, problem, setup));
}

constexpr std::string_view kAccepts = "f32, f16, bf16; head dims that are multiples of 8 up to 512";
constexpr auto kHandled = detail::handles<detail::AttentionBackward>(
    "ragged", "mask.left", "mask.right", "mask.anchor (top_left)", "softcap", "sink", "dlse", "options.batch_invariant",
    "options.deterministic", "alibi_slopes", "bias", "dropout_p", "dbias", "full_block_indices", "partial_block_indices", "packed_mask");

constexpr auto kEntries = Bf16Sets::each([]<class Isa>() { return entry<detail::AttentionBackward, Isa>(kAccepts, kHandled, plan<Isa>); });

}  // namespace

detail::Implementations<detail::AttentionBackward> implementations(detail::AttentionBackward) { return kEntries; }

}  // namespace fovea::cpu
