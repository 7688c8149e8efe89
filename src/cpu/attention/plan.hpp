// SPDX-License-Identifier: Apache-2.0
/// What the planners of dense and of paged attention share.
#pragma once

#include <memory>
#include <string>

#include "cpu/attention/engine.hpp"
#include "cpu/attention/schedule.hpp"
#include "cpu/attention/tuning.hpp"
#include "cpu/instruction_sets.hpp"
#include "op/common/attention_core.hpp"
#include "plan/implementation.hpp"

namespace fovea::cpu {

/// Whether both operands are exactly bf16 values.
constexpr bool has_bf16_products(const detail::AttentionCore& core) {
  const auto is_bf16 = [](DType dtype) { return dtype == DType::bf16 || dtype == DType::e4m3; };
  return is_bf16(core.q_dtype) && is_bf16(core.kv_dtype);
}

/// Fills in everything but the strides of K and V.
template <class Isa>
Setup make_setup(const detail::AttentionCore& core, bool ragged) {
  const bool bf16 = Isa::bf16() != nullptr && has_bf16_products(core);
  Setup setup{.core = core, .ragged = ragged, .attention = bf16 ? Isa::bf16() : &Isa::kernels().attention, .rows = &Isa::kernels().rows};
  setup.threads = threads_of(core);
  setup.tuning = choose_tuning(core, *setup.attention, setup.threads, ragged);
  return setup;
}

std::string describe(const Setup& setup);

/// Says what no kernel here takes of dense attention.
inline std::optional<Error> decline_dense(const detail::AttentionCore& core) {
  if (core.q_dtype == DType::f64) return detail::declined("q.dtype", "f64", "f32, f16, bf16 or e4m3 (the reference computes f64)");
  return detail::decline_head_dims(core);
}

inline Call common_call(const auto& args) {
  return {.q = args.q,
          .out = args.out,
          .lse = args.lse,
          .sink = args.sink,
          .k_scale = args.k_scale,
          .v_scale = args.v_scale,
          .cu_seqlens_q = args.cu_seqlens_q};
}

/// A plan of dense or paged attention. The CPU needs no schedule from prepare(): building one takes less time than one tile. run() reads
/// and checks the lengths in any case.
template <class Problem, class Args>
class AttentionState final : public detail::PlanState<Args> {
 public:
  using MakeCall = Call (*)(const Args&);

  AttentionState(std::string_view name, const Problem& problem, const Setup& setup, MakeCall make_call)
      : problem_(problem), setup_(setup), make_call_(make_call) {
    this->implementation = name;
    this->workspace_bytes = map_workspace(setup, nullptr).bytes;
  }

  Result<void> prepare(const Args& args, Workspace workspace, Stream) const override { return check(args, workspace); }

  Result<void> run(const Args& args, Workspace workspace, Stream, bool) const override {
    if (Result<void> good = check(args, workspace); !good) return good;
    attend(setup_, make_call_(args), static_cast<std::byte*>(workspace.data));
    return {};
  }

  std::string tuning() const override { return describe(setup_); }

 private:
  Result<void> check(const Args& args, Workspace workspace) const {
    if (Result<void> good = check_args(problem_, args); !good) return good;
    if (Result<void> good = detail::check_workspace(workspace, this->workspace_bytes); !good) return good;
    return check_lengths(problem_, args);
  }

  Problem problem_;
  Setup setup_;
  MakeCall make_call_;
};

}  // namespace fovea::cpu
