// SPDX-License-Identifier: Apache-2.0
/// The entries that each backend of the build adds, fastest first and the reference last, and its devices. A new backend is a line here.
#include <vector>

#ifdef FOVEA_HAS_CPU
#include "cpu/features.hpp"
#include "cpu/implementations.hpp"
#endif
#ifdef FOVEA_HAS_CUDA
#include "gpu/devices.hpp"
#endif
#ifdef FOVEA_HAS_CUDA_SM90
#include "gpu/cuda/sm90/implementations.hpp"
#endif
#ifdef FOVEA_HAS_CUDA_SM100
#include "gpu/cuda/sm100/implementations.hpp"
#endif
#ifdef FOVEA_HAS_CUDA_PORTABLE
#include "gpu/cuda/portable/implementations.hpp"
#endif
#ifdef FOVEA_HAS_HIP
#include "gpu/hip/cdna/implementations.hpp"
#include "gpu/hip/runtime.hpp"
#endif
#include "fovea/info.hpp"
#include "plan/implementation.hpp"
#include "reference/implementations.hpp"

namespace fovea::detail {
namespace {

/// The entries of every backend of the build that has this operation.
template <class Operation>
std::vector<Implementation<Operation>> collect() {
  std::vector<Implementation<Operation>> all;
  const auto append = [&](Implementations<Operation> rows) { all.insert(all.end(), rows.begin(), rows.end()); };
#ifdef FOVEA_HAS_CUDA_SM90
  if constexpr (requires { gpu::sm90::implementations(Operation{}); }) append(gpu::sm90::implementations(Operation{}));
#endif
#ifdef FOVEA_HAS_CUDA_SM100
  if constexpr (requires { gpu::sm100::implementations(Operation{}); }) append(gpu::sm100::implementations(Operation{}));
#endif
#ifdef FOVEA_HAS_CUDA_PORTABLE
  if constexpr (requires { gpu::portable::implementations(Operation{}); }) append(gpu::portable::implementations(Operation{}));
#endif
#ifdef FOVEA_HAS_HIP
  if constexpr (requires { gpu::cdna::implementations(Operation{}); }) append(gpu::cdna::implementations(Operation{}));
#endif
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

std::optional<Error> environment_error() {
#ifdef FOVEA_HAS_CPU
  return cpu::environment_error();
#else
  return std::nullopt;
#endif
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
template Implementations<IndexLogits> implementations_of<IndexLogits>();
template Implementations<TopkRows> implementations_of<TopkRows>();
template Implementations<QuantizeQkInt8> implementations_of<QuantizeQkInt8>();
template Implementations<QuantizeV> implementations_of<QuantizeV>();
template Implementations<QuantizedAttention> implementations_of<QuantizedAttention>();
template Implementations<QuantizeAndAttend> implementations_of<QuantizeAndAttend>();

}  // namespace fovea::detail

namespace fovea {

std::vector<DeviceInfo> devices() {
  std::vector<DeviceInfo> all;
#ifdef FOVEA_HAS_CPU
  cpu::append_devices(all);
#endif
#ifdef FOVEA_HAS_CUDA
  gpu::append_devices(all);
#endif
#ifdef FOVEA_HAS_HIP
  gpu::hip::append_devices(all);
#endif
  return all;
}

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
