// SPDX-License-Identifier: Apache-2.0
#include "gpu/hip/cdna/paged_attention/params.hpp"
#include "gpu/hip/cdna/wave.hpp"

FOVEA_CDNA_KERNEL(paged_attention_clear, fovea::gpu::cdna::paged_attention::ClearParams, 256, 1) {
  const int index = fovea::gpu::cdna::workgroup_x() * 256 + fovea::gpu::cdna::thread();
  if (index < params.count) params.counters[index] = 0;
}
