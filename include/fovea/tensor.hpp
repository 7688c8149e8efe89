// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string_view>

#include "fovea/standard.hpp"

namespace fovea {

enum class DType : std::uint8_t { f32, f16, bf16, e4m3, i8, i32, i64, f64 };

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::e4m3:
    case DType::i8: return 1;
    case DType::f16:
    case DType::bf16: return 2;
    case DType::f32:
    case DType::i32: return 4;
    case DType::i64:
    case DType::f64: return 8;
  }
  return 0;
}

/// "bf16", "e4m3", ...
constexpr std::string_view name_of(DType dtype) {
  constexpr std::array<std::string_view, 8> kNames{"f32", "f16", "bf16", "e4m3", "i8", "i32", "i64", "f64"};
  const auto index = static_cast<std::size_t>(dtype);
  return index < kNames.size() ? kNames[index] : "unknown dtype";
}

/// A tensor without its pointer: all that planning may look at. Strides count elements; a stride of 0 broadcasts
/// (inputs only). The last dimension of q, k, v and out must be contiguous; every other stride is free.
struct TensorDesc {
  DType dtype = DType::f32;
  int rank = 0;
  std::array<std::int64_t, 4> shape{};
  std::array<std::int64_t, 4> strides{};
  /// Bytes to which the pointer given to run() will be aligned: a power of two, checked by run(). 0 promises the
  /// element's own size. Fast GPU kernels want 16.
  std::int32_t alignment = 0;
};

/// A dense row-major tensor: `contiguous(DType::bf16, {batch, seq, head, head_dim})`. At most four dimensions.
constexpr TensorDesc contiguous(DType dtype, std::initializer_list<std::int64_t> shape) {
  TensorDesc desc{};
  desc.dtype = dtype;
  for (const std::int64_t extent : shape) {
    if (desc.rank == 4) break;
    desc.shape[static_cast<std::size_t>(desc.rank++)] = extent;
  }
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();  // planning refuses it, as it does negative extents
  std::int64_t stride = 1;
  for (int axis = desc.rank - 1; axis >= 0; --axis) {
    desc.strides[static_cast<std::size_t>(axis)] = stride;
    const std::int64_t extent = std::max<std::int64_t>(desc.shape[static_cast<std::size_t>(axis)], 0);
    stride = extent > 1 && stride > kMost / extent ? kMost : stride * extent;
  }
  return desc;
}

/// Strides of an optional f32 scale tensor that dequantises e4m3 values: `value = code * scale[batch, kv_head]`.
/// Both strides 0: one value for the whole tensor. A cache has no batch dimension and ignores `batch_stride`.
struct ScaleDesc {
  std::int64_t batch_stride = 0;
  std::int64_t head_stride = 0;
};

}  // namespace fovea
