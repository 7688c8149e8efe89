// SPDX-License-Identifier: Apache-2.0
/// The ordered lists: fastest first, the reference last. A new backend is a line in each.
#include <vector>

#ifdef FOVEA_HAS_CPU
#include "cpu/implementations.hpp"
#endif
#include "plan/implementation.hpp"
#include "reference/implementations.hpp"

namespace fovea::detail {
namespace {

template <class Impl>
std::vector<Impl> concatenate(std::initializer_list<std::span<const Impl>> lists) {
  std::vector<Impl> all;
  for (const std::span<const Impl> list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

}  // namespace

std::span<const AttentionImplementation> attention_implementations() {
  static const auto kList = concatenate<AttentionImplementation>({
#ifdef FOVEA_HAS_CPU
      cpu::attention_implementations(),
#endif
      reference::attention_implementations()});
  return kList;
}

std::span<const PagedAttentionImplementation> paged_attention_implementations() {
  static const auto kList = concatenate<PagedAttentionImplementation>({
#ifdef FOVEA_HAS_CPU
      cpu::paged_attention_implementations(),
#endif
      reference::paged_attention_implementations()});
  return kList;
}

std::span<const PagedCacheAppendImplementation> paged_cache_append_implementations() {
  static const auto kList = concatenate<PagedCacheAppendImplementation>({
#ifdef FOVEA_HAS_CPU
      cpu::paged_cache_append_implementations(),
#endif
      reference::paged_cache_append_implementations()});
  return kList;
}

std::span<const MergeStatesImplementation> merge_states_implementations() {
  static const auto kList = concatenate<MergeStatesImplementation>({
#ifdef FOVEA_HAS_CPU
      cpu::merge_states_implementations(),
#endif
      reference::merge_states_implementations()});
  return kList;
}

}  // namespace fovea::detail
