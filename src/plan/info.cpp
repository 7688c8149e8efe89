// SPDX-License-Identifier: Apache-2.0
#include "fovea/info.hpp"

#include "plan/implementation.hpp"

namespace fovea {
namespace {

template <class Operation>
void append(std::vector<ImplementationInfo>& rows) {
  const std::optional<Error> wrong = detail::environment_error();
  for (const auto& implementation : detail::implementations_of<Operation>()) {
    const std::string_view reason = wrong ? std::string_view(wrong->message) : implementation.unavailable();
    rows.push_back({.name = implementation.name,
                    .operation = Operation::kName,
                    .backend = implementation.backend,
                    .accepts = implementation.accepts,
                    .available = reason.empty(),
                    .unavailable_because = std::string(reason)});
  }
}

template <class... Operation>
std::vector<ImplementationInfo> all(std::tuple<Operation...>*) {
  std::vector<ImplementationInfo> rows;
  (append<Operation>(rows), ...);
  return rows;
}

}  // namespace

std::vector<ImplementationInfo> implementations() { return all(static_cast<detail::Operations*>(nullptr)); }

std::string_view version() { return FOVEA_VERSION; }

}  // namespace fovea
