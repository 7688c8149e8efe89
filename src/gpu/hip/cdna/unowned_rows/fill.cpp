// SPDX-License-Identifier: Apache-2.0
#include "gpu/common/unowned_rows.hpp"
#include "gpu/hip/cdna/implementations.hpp"
#include "gpu/hip/runtime.hpp"

namespace fovea::gpu::cdna {

Result<void> fill_unowned_rows(const detail::UnownedRows& rows, Device device, Stream stream) {
  const hip::ScopedDevice current(device.ordinal);
  if (!current.status()) return current.status();
  const bool wide = fits_words<WideZero>(rows);
  const Result<hip::FunctionHandle> kernel =
      hip::find_kernel(device.ordinal, "fill", wide ? "fill_unowned_rows_wide" : "fill_unowned_rows_narrow");
  if (!kernel) return kernel.error();
  return hip::launch(*kernel, {.grid = {fill_groups(rows), 1, 1}, .threads = kFillThreads}, stream, &rows);
}

}  // namespace fovea::gpu::cdna
