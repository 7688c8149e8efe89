// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "plan/implementation.hpp"

namespace fovea::reference {

template <class Operation>
struct State final : detail::PlanState<typename Operation::Args> {
  using Problem = typename Operation::Problem;
  using Args = typename Operation::Args;
  using Run = Result<void> (*)(const Problem&, const Args&);

  State(const Problem& p, Run r) : problem(p), run_(r) { this->implementation = kName; }

  Result<void> prepare(const Args&, Workspace, Stream) const override { return {}; }
  Result<void> run(const Args& args, Workspace, Stream, bool) const override { return run_(problem, args); }
  std::string tuning() const override { return "double precision, straight loops, one thread"; }

  static const std::string kName;
  Problem problem;
  Run run_;
};

template <class Operation>
const std::string State<Operation>::kName = "reference." + std::string(Operation::kName);

template <class Operation>
detail::PlanResult<typename Operation::Args> make_state(const typename Operation::Problem& problem, typename State<Operation>::Run run) {
  return std::shared_ptr<const detail::PlanState<typename Operation::Args>>(std::make_shared<State<Operation>>(problem, run));
}

inline std::string_view always_available() { return {}; }

/// The list of one operation: the reference alone, which handles every option.
template <class Operation>
detail::Implementations<Operation> only(std::string_view accepts,
                                        detail::PlanResult<typename Operation::Args> (*plan)(const typename Operation::Problem&, Device)) {
  static const detail::Implementation<Operation> kEntry{State<Operation>::kName, accepts, detail::handles_all<Operation>(), Backend::cpu,
                                                        always_available,        plan};
  return {&kEntry, 1};
}

/// Values to be rounded into one of the caller's tensors, seen as [flat row, head, width].
struct Rounding {
  const std::vector<double>& values;
  const std::vector<char>& written;  ///< [flat rows]
  std::int64_t rows_per_batch = 1;   ///< flat row = batch item * rows_per_batch + row; a ragged batch counts as one item
  std::int64_t heads = 1, width = 1;
};

void round_rows(const Rounding& from, DType dtype, const detail::RowStrides& strides, void* to);

detail::Implementations<detail::Attention> implementations(detail::Attention);
detail::Implementations<detail::AttentionBackward> implementations(detail::AttentionBackward);
detail::Implementations<detail::PagedAttention> implementations(detail::PagedAttention);
detail::Implementations<detail::PagedCacheAppend> implementations(detail::PagedCacheAppend);
detail::Implementations<detail::MergeStates> implementations(detail::MergeStates);
detail::Implementations<detail::LatentAttention> implementations(detail::LatentAttention);
detail::Implementations<detail::SparseLatentAttention> implementations(detail::SparseLatentAttention);
detail::Implementations<detail::QuantizeLatentCache> implementations(detail::QuantizeLatentCache);
detail::Implementations<detail::DequantizeLatentCache> implementations(detail::DequantizeLatentCache);
detail::Implementations<detail::IndexLogits> implementations(detail::IndexLogits);
detail::Implementations<detail::TopkRows> implementations(detail::TopkRows);
detail::Implementations<detail::QuantizeQkInt8> implementations(detail::QuantizeQkInt8);
detail::Implementations<detail::QuantizeV> implementations(detail::QuantizeV);
detail::Implementations<detail::QuantizedAttention> implementations(detail::QuantizedAttention);
detail::Implementations<detail::QuantizeAndAttend> implementations(detail::QuantizeAndAttend);

}  // namespace fovea::reference
