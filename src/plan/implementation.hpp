// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "plan/operations.hpp"

namespace fovea::detail {

template <class Args>
using PlanResult = Result<std::shared_ptr<const PlanState<Args>>>;

/// One row of an ordered list. It supports a problem exactly when `plan` succeeds; Error{unsupported, reason} declines.
template <class Operation_>
struct Implementation {
  using Operation = Operation_;
  using Problem = typename Operation::Problem;
  using Args = typename Operation::Args;

  std::string_view name{};     ///< "cpu.avx2.attention"
  std::string_view accepts{};  ///< a line for people: dtypes, head dims, what it declines
  Backend backend{};
  std::string_view (*unavailable)() = nullptr;  ///< "needs avx512f" when this machine cannot run it, else empty
  PlanResult<Args> (*plan)(const Problem&, Device) = nullptr;
  std::string_view (*outdone)() = nullptr;  ///< why a later row is faster on this machine, else empty: then only who asks by name gets it
};

template <class Operation>
using Implementations = std::span<const Implementation<Operation>>;

/// The ordered list of an operation, fastest first, the reference last: src/plan/implementations.cpp.
template <class Operation>
Implementations<Operation> implementations_of();

}  // namespace fovea::detail
