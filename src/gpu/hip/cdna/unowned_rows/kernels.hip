// SPDX-License-Identifier: Apache-2.0
#include "gpu/common/unowned_rows.cuh"
#include "gpu/hip/cdna/wave.hpp"

#define FOVEA_FILL_KERNEL(name, Word)                                                                                 \
  FOVEA_CDNA_KERNEL(fill_unowned_rows_##name, fovea::detail::UnownedRows, 256, 1) {                                   \
    fovea::gpu::fill_part<fovea::gpu::Word>(params, fovea::gpu::cdna::workgroup_x(), fovea::gpu::fill_groups(params), \
                                            fovea::gpu::cdna::thread());                                              \
  }
FOVEA_FILL_KERNEL(wide, WideZero)
FOVEA_FILL_KERNEL(narrow, NarrowZero)
