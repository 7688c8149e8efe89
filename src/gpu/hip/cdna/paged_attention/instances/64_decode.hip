// SPDX-License-Identifier: Apache-2.0
#include "gpu/hip/cdna/paged_attention/kernel.hpp"

FOVEA_PAGED_ATTENTION_KERNELS(64_decode, 0)
