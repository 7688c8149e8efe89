// SPDX-License-Identifier: Apache-2.0
/// The requests of a call beyond its tensors: one table an operation, beside its problem.
#pragma once

#include <string_view>

#include "fovea/mask.hpp"

namespace fovea::detail {

/// A row of such a table: the option as errors name it, and whether a problem makes use of it.
template <class Problem>
struct Option {
  std::string_view name{};
  bool (*used)(const Problem& problem) = nullptr;
};

/// Options that several operations have, each for a problem with the member that it reads.
namespace option {

template <class Problem>
inline constexpr Option<Problem> kRagged{"ragged", [](const Problem& p) { return p.ragged; }};
template <class Problem>
inline constexpr Option<Problem> kMaskLeft{"mask.left", [](const Problem& p) { return p.mask.left != kUnbounded; }};
template <class Problem>
inline constexpr Option<Problem> kMaskRight{"mask.right", [](const Problem& p) { return p.mask.right != kUnbounded; }};
template <class Problem>
inline constexpr Option<Problem> kMaskTopLeft{"mask.anchor (top_left)", [](const Problem& p) { return p.mask.anchor == Anchor::top_left; }};
template <class Problem>
inline constexpr Option<Problem> kSink{"sink", [](const Problem& p) { return p.has_sink; }};
template <class Problem>
inline constexpr Option<Problem> kLse{"lse", [](const Problem& p) { return p.has_lse; }};
template <class Problem>
inline constexpr Option<Problem> kBatchInvariant{"options.batch_invariant", [](const Problem& p) { return p.batch_invariant; }};
template <class Problem>
inline constexpr Option<Problem> kExactRows{"options.exact_rows", [](const Problem& p) { return p.exact_rows; }};

}  // namespace option
}  // namespace fovea::detail
