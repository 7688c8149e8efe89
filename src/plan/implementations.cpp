// SPDX-License-Identifier: Apache-2.0
/// The ordered lists: fastest first, the reference last. A new backend is a line here.
#include <vector>

#ifdef FOVEA_HAS_CPU
#include "cpu/implementations.hpp"
#endif
#include "plan/implementation.hpp"
#include "reference/implementations.hpp"

namespace fovea::detail {
namespace {

/// The rows of every backend of the build that has this operation.
template <class Operation>
std::vector<Implementation<Operation>> collect() {
  std::vector<Implementation<Operation>> all;
  const auto append = [&](Implementations<Operation> rows) { all.insert(all.end(), rows.begin(), rows.end()); };
#ifdef FOVEA_HAS_CPU
  if constexpr (requires { cpu::implementations(Operation{}); }) append(cpu::implementations(Operation{}));
#endif
  append(reference::implementations(Operation{}));
  return all;
}

}  // namespace

template <class Operation>
Implementations<Operation> implementations_of() {
  static const std::vector<Implementation<Operation>> kList = collect<Operation>();
  return kList;
}

template Implementations<Attention> implementations_of<Attention>();
template Implementations<AttentionBackward> implementations_of<AttentionBackward>();
template Implementations<PagedAttention> implementations_of<PagedAttention>();
template Implementations<PagedCacheAppend> implementations_of<PagedCacheAppend>();
template Implementations<MergeStates> implementations_of<MergeStates>();
template Implementations<LatentAttention> implementations_of<LatentAttention>();
template Implementations<SparseLatentAttention> implementations_of<SparseLatentAttention>();
template Implementations<QuantizeLatentCache> implementations_of<QuantizeLatentCache>();
template Implementations<DequantizeLatentCache> implementations_of<DequantizeLatentCache>();
template Implementations<QuantizeQkInt8> implementations_of<QuantizeQkInt8>();
template Implementations<QuantizeV> implementations_of<QuantizeV>();
template Implementations<QuantizedAttention> implementations_of<QuantizedAttention>();
template Implementations<QuantizeAndAttend> implementations_of<QuantizeAndAttend>();

}  // namespace fovea::detail
