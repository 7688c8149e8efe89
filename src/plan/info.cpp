// SPDX-License-Identifier: Apache-2.0
#include "fovea/info.hpp"

#include "plan/implementation.hpp"

namespace fovea {
namespace {

template <class Impl>
void append(std::vector<ImplementationInfo>& rows, std::string_view operation, std::span<const Impl> list) {
  for (const Impl& implementation : list) {
    const std::string_view reason = implementation.unavailable();
    rows.push_back({.name = implementation.name,
                    .operation = operation,
                    .backend = implementation.backend,
                    .accepts = implementation.accepts,
                    .available = reason.empty(),
                    .unavailable_because = std::string(reason)});
  }
}

}  // namespace

std::vector<ImplementationInfo> implementations() {
  std::vector<ImplementationInfo> rows;
  append(rows, "attention", detail::attention_implementations());
  append(rows, "paged_attention", detail::paged_attention_implementations());
  append(rows, "paged_cache_append", detail::paged_cache_append_implementations());
  append(rows, "merge_states", detail::merge_states_implementations());
  return rows;
}

std::string_view version() { return FOVEA_VERSION; }

}  // namespace fovea
