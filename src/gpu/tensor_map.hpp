// SPDX-License-Identifier: Apache-2.0
/// Descriptors for the tensor copies (TMA) of Hopper and later. The encoder of the driver is found through the runtime, so nothing links
/// libcuda.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>

#include "fovea/result.hpp"
#include "fovea/tensor.hpp"

namespace fovea::gpu {

/// A tensor of 1 to 5 dimensions, innermost first, and its TMA box. Elements outside the tensor arrive as zeros, unless `fill` says NaN.
struct TensorMapDesc {
  struct Dimension {
    std::int64_t extent = 1;
    std::int64_t stride = 1;  ///< elements; of the innermost dimension 1
    int box = 1;
  };
  DType dtype = DType::bf16;
  int rank = 2;
  std::array<Dimension, 5> dimensions{};
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  CUtensorMapL2promotion l2_promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
  CUtensorMapFloatOOBfill fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
};

/// Host work of a fraction of a microsecond, in any thread. `base` and every stride must be multiples of 16 bytes. A box has at most 256
/// elements a dimension, and an innermost extent no wider than the swizzle (128 bytes).
Result<CUtensorMap> encode_tensor_map(const void* base, const TensorMapDesc& desc);

}  // namespace fovea::gpu
