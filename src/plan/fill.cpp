// SPDX-License-Identifier: Apache-2.0
/// The backends' ways to fill rows, and the host's.
#include "plan/fill.hpp"

#include <algorithm>
#include <limits>

#ifdef FOVEA_HAS_CUDA_PORTABLE
#include "gpu/cuda/portable/implementations.hpp"
#endif
#ifdef FOVEA_HAS_HIP
#include "gpu/hip/cdna/implementations.hpp"
#endif

namespace fovea::detail {
namespace {

/// A run has looked at the lengths: none is over its bound.
void fill_on_host(const UnownedRows& rows) {
  const OutsideRows outside(rows.cu_seqlens_q[0], rows.cu_seqlens_q[rows.batch], rows.total);
  for (std::int64_t i = 0; i < outside.count(); ++i) {
    const std::int64_t row = outside.at(i);
    for (std::int64_t head = 0; head < rows.heads; ++head) {
      if (rows.out != nullptr) std::fill_n(rows.out + row * rows.row_bytes + head * rows.head_bytes, rows.value_bytes, std::byte{0});
      if (rows.lse != nullptr) rows.lse[row * rows.lse_row + head * rows.lse_head] = -std::numeric_limits<float>::infinity();
    }
  }
}

}  // namespace

Result<void> fill_unowned_rows(const UnownedRows& rows, [[maybe_unused]] Device device, [[maybe_unused]] Stream stream) {
#ifdef FOVEA_HAS_CUDA_PORTABLE
  if (device.backend == Backend::cuda) return gpu::portable::fill_unowned_rows(rows, device, stream);
#endif
#ifdef FOVEA_HAS_HIP
  if (device.backend == Backend::hip) return gpu::cdna::fill_unowned_rows(rows, device, stream);
#endif
  fill_on_host(rows);
  return {};
}

}  // namespace fovea::detail
