// SPDX-License-Identifier: Apache-2.0
/// The reference as the last row of every list: slow, but it accepts whatever the contract allows. It alone allocates in run().
#include "reference/implementations.hpp"

#include <array>

#include "op/attention/validate.hpp"
#include "op/common/attention_checks.hpp"
#include "op/merge_states/validate.hpp"
#include "op/paged_attention/validate.hpp"
#include "op/paged_cache_append/validate.hpp"
#include "reference/element.hpp"
#include "reference/reference.hpp"

namespace fovea::reference {
namespace {

std::string_view always_available() { return {}; }

/// A plan that needs no workspace and no schedule.
template <class Problem, class Args>
struct State final : detail::PlanState<Args> {
  using Run = Result<void> (*)(const Problem&, const Args&);
  State(std::string_view name, const Problem& p, Run r) : problem(p), run_(r) { this->implementation = name; }

  Result<void> prepare(const Args&, Workspace, Stream) const override { return {}; }
  Result<void> run(const Args& args, Workspace, Stream, bool) const override { return run_(problem, args); }
  std::string tuning() const override { return "double precision, straight loops, one thread"; }

  Problem problem;
  Run run_;
};

template <class Problem, class Args>
detail::PlanResult<Args> make_state(std::string_view name, const Problem& problem, typename State<Problem, Args>::Run run) {
  return std::shared_ptr<const detail::PlanState<Args>>(std::make_shared<State<Problem, Args>>(name, problem, run));
}

/// Rounds into the caller's tensors, of which each batch item has `rows` rows (a ragged batch counts as one item).
void round_attention(const detail::AttentionCore& core, std::int64_t rows, const AttentionOutput& result, void* out, float* lse) {
  for (std::int64_t flat = 0; flat < core.total_q; ++flat) {
    if (result.written[static_cast<std::size_t>(flat)] == 0) continue;
    const std::int64_t b = flat / rows, row = flat % rows;
    for (std::int64_t head = 0; head < core.heads; ++head) {
      const auto at = static_cast<std::size_t>(flat * core.heads + head);
      for (std::int64_t d = 0; d < core.head_dim_v; ++d) {
        const double value = result.out[at * static_cast<std::size_t>(core.head_dim_v) + static_cast<std::size_t>(d)];
        store(core.out_dtype, out, b * core.out.batch + row * core.out.row + head * core.out.head + d, value);
      }
      if (core.has_lse) store(DType::f32, lse, b * core.lse.batch + row * core.lse.row + head * core.lse.head, result.lse[at]);
    }
  }
}

Result<void> run_attention(const detail::AttentionProblem& problem, const AttentionArgs& args) {
  if (Result<void> good = check_args(problem, args); !good) return good;
  if (Result<void> good = check_lengths(problem, args); !good) return good;
  round_attention(problem, problem.ragged ? problem.total_q : problem.max_seq_q, attention(problem, args), args.out, args.lse);
  return {};
}

Result<void> run_paged_attention(const detail::PagedAttentionProblem& problem, const PagedAttentionArgs& args) {
  if (Result<void> good = check_args(problem, args); !good) return good;
  if (Result<void> good = check_lengths(problem, args); !good) return good;
  round_attention(problem, problem.total_q, paged_attention(problem, args), args.out, args.lse);
  return {};
}

Result<void> run_paged_cache_append(const detail::PagedCacheAppendProblem& problem, const PagedCacheAppendArgs& args) {
  if (Result<void> good = check_args(problem, args); !good) return good;
  if (Result<void> good = check_slots(problem, args); !good) return good;
  paged_cache_append(problem, args);
  return {};
}

Result<void> run_merge_states(const detail::MergeStatesProblem& problem, const MergeStatesArgs& args) {
  if (Result<void> good = check_args(problem, args); !good) return good;
  const AttentionOutput result = merge_states(problem, args);
  for (std::int64_t row = 0; row < problem.total_q; ++row) {
    for (std::int64_t head = 0; head < problem.heads; ++head) {
      const auto at = static_cast<std::size_t>(row * problem.heads + head);
      for (std::int64_t d = 0; d < problem.head_dim_v; ++d) {
        const double value = result.out[at * static_cast<std::size_t>(problem.head_dim_v) + static_cast<std::size_t>(d)];
        store(problem.dtype, args.out, row * problem.out.out_row + head * problem.out.out_head + d, value);
      }
      if (problem.has_lse) store(DType::f32, args.lse, row * problem.out.lse_row + head * problem.out.lse_head, result.lse[at]);
    }
  }
  return {};
}

detail::PlanResult<AttentionArgs> plan_attention(const detail::AttentionProblem& problem, Device) {
  if (auto reason = detail::decline_head_dims(problem)) return *reason;
  return make_state<detail::AttentionProblem, AttentionArgs>("reference.attention", problem, run_attention);
}

detail::PlanResult<PagedAttentionArgs> plan_paged_attention(const detail::PagedAttentionProblem& problem, Device) {
  if (auto reason = detail::decline_head_dims(problem)) return *reason;
  return make_state<detail::PagedAttentionProblem, PagedAttentionArgs>("reference.paged_attention", problem, run_paged_attention);
}

detail::PlanResult<PagedCacheAppendArgs> plan_paged_cache_append(const detail::PagedCacheAppendProblem& problem, Device) {
  return make_state<detail::PagedCacheAppendProblem, PagedCacheAppendArgs>("reference.paged_cache_append", problem, run_paged_cache_append);
}

detail::PlanResult<MergeStatesArgs> plan_merge_states(const detail::MergeStatesProblem& problem, Device) {
  return make_state<detail::MergeStatesProblem, MergeStatesArgs>("reference.merge_states", problem, run_merge_states);
}

constexpr std::string_view kAcceptsAttention = "f32, f16, bf16, e4m3; head dims that are multiples of 8 up to 256";
constexpr std::string_view kAcceptsPaged = "f32, f16, bf16, e4m3 caches; head dims that are multiples of 8 up to 256; any page";

constexpr std::array kAttention{
    detail::AttentionImplementation{"reference.attention", kAcceptsAttention, Backend::cpu, always_available, plan_attention}};
constexpr std::array kPagedAttention{
    detail::PagedAttentionImplementation{"reference.paged_attention", kAcceptsPaged, Backend::cpu, always_available, plan_paged_attention}};
constexpr std::array kPagedCacheAppend{detail::PagedCacheAppendImplementation{"reference.paged_cache_append",
                                                                              "f32, f16, bf16 rows; same dtype or e4m3 caches",
                                                                              Backend::cpu, always_available, plan_paged_cache_append}};
constexpr std::array kMergeStates{detail::MergeStatesImplementation{"reference.merge_states", "f32, f16, bf16; any head dim", Backend::cpu,
                                                                    always_available, plan_merge_states}};

}  // namespace

std::span<const detail::AttentionImplementation> attention_implementations() { return kAttention; }
std::span<const detail::PagedAttentionImplementation> paged_attention_implementations() { return kPagedAttention; }
std::span<const detail::PagedCacheAppendImplementation> paged_cache_append_implementations() { return kPagedCacheAppend; }
std::span<const detail::MergeStatesImplementation> merge_states_implementations() { return kMergeStates; }

}  // namespace fovea::reference
