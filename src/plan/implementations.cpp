// SPDX-License-Identifier: Apache-2.0
/// The ordered lists: fastest first, the reference last. A new backend is a line here.
#include <utility>
#include <vector>

#ifdef FOVEA_HAS_CPU
#include "cpu/implementations.hpp"
#endif
#include "plan/implementation.hpp"
#include "reference/implementations.hpp"

namespace fovea::detail {
namespace {

template <class Operation>
std::vector<Implementation<Operation>> concatenate(std::initializer_list<Implementations<Operation>> lists) {
  std::vector<Implementation<Operation>> all;
  for (const Implementations<Operation> list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

}  // namespace

template <class Operation>
Implementations<Operation> implementations_of() {
  static const std::vector<Implementation<Operation>> kList = concatenate<Operation>({
#ifdef FOVEA_HAS_CPU
      cpu::implementations(Operation{}),
#endif
      reference::implementations(Operation{})});
  return kList;
}

/// Instantiates the list of every operation.
template <class... Operation>
constexpr auto instantiate(std::tuple<Operation...>*) {
  return std::tuple{&implementations_of<Operation>...};
}
[[maybe_unused]] constexpr auto kInstances = instantiate(static_cast<Operations*>(nullptr));

}  // namespace fovea::detail
