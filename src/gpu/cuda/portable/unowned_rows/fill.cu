// SPDX-License-Identifier: Apache-2.0
#include "gpu/common/unowned_rows.cuh"
#include "gpu/cuda/portable/implementations.hpp"
#include "gpu/runtime.hpp"

namespace fovea::gpu::portable {
namespace unowned_rows {

template <class Word>
__global__ void __launch_bounds__(kFillThreads) fill(const detail::UnownedRows rows) {
  fill_part<Word>(rows, blockIdx.x, gridDim.x, threadIdx.x);
}

}  // namespace unowned_rows

Result<void> fill_unowned_rows(const detail::UnownedRows& rows, Device device, Stream stream) {
  const ScopedDevice current(device.ordinal);
  if (!current.status()) return current.status();
  const LaunchShape shape{.grid = dim3(fill_groups(rows)), .block = dim3(kFillThreads)};
  return launch(fits_words<WideZero>(rows) ? unowned_rows::fill<WideZero> : unowned_rows::fill<NarrowZero>, shape, stream, rows);
}

}  // namespace fovea::gpu::portable
