// SPDX-License-Identifier: Apache-2.0
/// Sequences of many query rows by this folder's kernel, and the others by the portable one, which splits keys, beside it.
#include <algorithm>
#include <memory>
#include <string>

#include "gpu/cuda/sm90/implementations.hpp"
#include "gpu/cuda/sm90/paged_attention/mixed.hpp"
#include "gpu/cuda/sm90/paged_attention/tuning.hpp"
#include "gpu/plan_state.hpp"
#include "op/paged_attention/validate.hpp"
#include "plan/select.hpp"

namespace fovea::gpu::sm90::paged_attention {
namespace {

using Problem = detail::PagedAttentionProblem;
using Half = std::shared_ptr<const detail::PlanState<PagedAttentionArgs>>;

constexpr std::string_view kOthersName = "cuda.portable.paged_attention";

Bounds bounds_of(const Problem& p) { return {p.batch, p.total_q, p.max_seq_q, p.group()}; }

class State final : public PlanState<Problem, PagedAttentionArgs> {
 public:
  State(const Problem& problem, Device device, Half prefill, Half decode)
      : PlanState(kMixedName, problem, device), prefill_(std::move(prefill)), decode_(std::move(decode)) {
    workspace_bytes = decode_->workspace_bytes;
  }

  std::string tuning() const override {
    const auto text = [](const Half& half) { return std::string(half->implementation) + ": " + half->tuning(); };
    return "sequences of " + std::to_string(prefill_from(bounds_of(problem_))) + " query tokens or more by " + text(prefill_) +
           "; beside it the others by " + text(decode_);
  }

 private:
  bool is_empty() const override { return problem_.batch == 0 || problem_.total_q == 0; }

  /// The first one's kernel lets the second one's start beside it.
  Result<void> compute(const PagedAttentionArgs& args, Workspace workspace, Stream stream, bool) const override {
    if (Result<void> launched = prefill_->run(args, {}, stream, false); !launched) return launched;
    return decode_->run(args, workspace, stream, false);
  }

  Half prefill_, decode_;
};

detail::PlanResult<PagedAttentionArgs> plan_half(std::string_view name, const Problem& problem, Device device) {
  const auto entries = detail::implementations_of<detail::PagedAttention>();
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const auto& entry) { return entry.name == name; });
  return detail::plan_with(*found, problem, device, true);
}

}  // namespace

detail::PlanResult<PagedAttentionArgs> plan_mixed(const Problem& problem, Device device) {
  Problem half = problem;
  half.prefill_from = prefill_from(bounds_of(problem));
  half.sequences = detail::SequenceClass::prefill;
  auto prefill = plan_half(kName, half, device);
  if (!prefill) return prefill.error();
  // Where no sequence is tall, all of them have the call to themselves.
  half.sequences = problem.max_seq_q < half.prefill_from ? detail::SequenceClass::all : detail::SequenceClass::decode;
  half.max_seq_q = std::min(problem.max_seq_q, half.prefill_from - 1);
  auto decode = plan_half(kOthersName, half, device);
  if (!decode) return decode.error();
  return std::shared_ptr<const detail::PlanState<PagedAttentionArgs>>(
      std::make_shared<State>(problem, device, *std::move(prefill), *std::move(decode)));
}

std::string_view mixed_outdone(const Problem& problem, Device) {
  if (problem.batch == 0 || problem.total_q == 0) return "nothing is to be computed";
  return outdone_by_one(bounds_of(problem));
}

}  // namespace fovea::gpu::sm90::paged_attention
