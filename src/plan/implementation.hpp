// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "plan/operations.hpp"

namespace fovea::detail {

template <class Args>
using PlanResult = Result<std::shared_ptr<const PlanState<Args>>>;

/// The options of an operation that an implementation handles; made by `handles`.
template <class Operation>
class Handled {
 public:
  using Problem = typename Operation::Problem;

  /// The option that `problem` uses and the implementation does not handle, or null.
  const Option<Problem>* missing(const Problem& problem) const {
    const bool* handled = is_handled_.data();
    for (const Option<Problem>& option : kOptions) {
      if (!*handled++ && option.used(problem)) return &option;
    }
    return nullptr;
  }

 private:
  template <class Operation_, class... Names>
  friend consteval Handled<Operation_> handles(const Names&... names);

  template <class... Names>
  consteval explicit Handled(const Names&... names) {
    (add(names), ...);
  }
  consteval bool find(std::string_view name) {
    const auto found = std::find_if(kOptions.begin(), kOptions.end(), [&](const auto& option) { return option.name == name; });
    if (found == kOptions.end()) return false;
    is_handled_[static_cast<std::size_t>(found - kOptions.begin())] = true;
    return true;
  }
  consteval void add(std::string_view name) {
    if (!find(name)) throw "the operation has no option of this name";  // does not compile
  }
  template <std::size_t kCount>
  consteval void add(const std::array<std::string_view, kCount>& shared) {
    for (const std::string_view name : shared) find(name);
  }

  static constexpr const auto& kOptions = Operation::kOptions;
  std::array<bool, kOptions.size()> is_handled_{};
};

/// Names the handled options one by one. An option that is added later is not among them, so planning declines problems that use it.
/// An array lists options that the entries of a family share, in all operations. Those that the operation lacks are skipped; one that it
/// gets later counts as handled by the family.
template <class Operation, class... Names>
consteval Handled<Operation> handles(const Names&... names) {
  return Handled<Operation>(names...);
}

/// For the reference, which handles every option.
template <class Operation>
consteval Handled<Operation> handles_all() {
  std::array<std::string_view, Operation::kOptions.size()> names{};
  std::transform(Operation::kOptions.begin(), Operation::kOptions.end(), names.begin(), [](const auto& option) { return option.name; });
  return handles<Operation>(names);
}

/// The services of an entry for others that plan with it.
struct Serves {
  bool value_tiles = false;       ///< reads e4m3 values in key tiles (gpu/cuda/common/value_tiles.hpp)
  bool decode_sequences = false;  ///< computes SequenceClass::decode beside the kernel before it
};

/// One entry of an ordered list. It supports a problem exactly when `plan` succeeds; Error{unsupported, reason} declines.
template <class Operation_>
struct Implementation {
  using Operation = Operation_;
  using Problem = typename Operation::Problem;
  using Args = typename Operation::Args;

  std::string_view name{};     ///< "cpu.avx2.attention"
  std::string_view accepts{};  ///< a line for people: dtypes, head dims, what it declines
  Handled<Operation> handled;  ///< has no default: an entry without it does not compile
  Backend backend{};
  std::string_view (*unavailable)() = nullptr;  ///< "needs avx512f" if this machine cannot run it, else empty
  PlanResult<Args> (*plan)(const Problem&, Device) = nullptr;
  /// Why a later entry is faster here for a problem that this one takes, else empty; an outdone entry is chosen by name only.
  std::string_view (*outdone)(const Problem&, Device) = nullptr;
  Serves serves{};
};

template <class Operation>
using Implementations = std::span<const Implementation<Operation>>;

/// The ordered list of an operation, fastest first, the reference last: src/plan/implementations.cpp.
template <class Operation>
Implementations<Operation> implementations_of();

/// The error of a backend that cannot understand the process's environment, or nothing. With an error no call is planned.
std::optional<Error> environment_error();

}  // namespace fovea::detail
