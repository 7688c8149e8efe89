// SPDX-License-Identifier: Apache-2.0
/// The tables of all operations as one. A new operation is a line here.
#include <algorithm>

#include "../backward_cases.hpp"
#include "../indexer_cases.hpp"
#include "../latent_cases.hpp"
#include "../quantized_cases.hpp"
#include "bound_case.hpp"

namespace fovea::check {
namespace {

/// The operation is the first part of the name.
template <class Spec>
void append(std::vector<AnyCase>& all, const std::vector<Spec>& table) {
  for (const Spec& spec : table) {
    const std::string_view operation = std::string_view(spec.name).substr(0, spec.name.find('/'));
    all.push_back({spec.name, operation, spec.tier, [&spec]() -> std::unique_ptr<Trial> { return bind(spec); }});
  }
}

}  // namespace

const std::vector<AnyCase>& all_cases() {
  static const auto latent = latent_cases();
  static const auto sparse = sparse_cases();
  static const auto conversions = conversion_cases();
  static const auto indices = index_cases();
  static const auto lists = topk_cases();
  static const auto backward = backward_cases();
  static const auto quantized = quantized_cases();
  static const std::vector<AnyCase> all = [] {
    std::vector<AnyCase> cases;
    append(cases, core_cases());
    append(cases, backward);
    append(cases, latent);
    append(cases, sparse);
    append(cases, conversions);
    append(cases, indices);
    append(cases, lists);
    append(cases, quantized);
    return cases;
  }();
  return all;
}

const AnyCase* find_any_case(std::string_view name) {
  const auto& table = all_cases();
  const auto found = std::find_if(table.begin(), table.end(), [&](const AnyCase& entry) { return entry.name == name; });
  return found == table.end() ? nullptr : &*found;
}

}  // namespace fovea::check
