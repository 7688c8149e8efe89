// SPDX-License-Identifier: Apache-2.0
/// K or V of a paged cache as planning sees it, plain or in a format of codes and scales.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "fovea/kv_format.hpp"
#include "op/common/checks.hpp"

namespace fovea::detail {

struct KvSideNames {
  std::string_view cache, format, scale, scale_cache;
};
inline constexpr KvSideNames kKNames{"k_cache", "k_format", "k_scale", "k_scale_cache"};
inline constexpr KvSideNames kVNames{"v_cache", "v_format", "v_scale", "v_scale_cache"};

/// One side of a call. `cache` has been checked as a tensor of four dimensions.
struct KvSide {
  const KvSideNames& names;
  const NamedTensor& cache;
  KvFormat format{};
  const std::optional<ScaleDesc>& scale;
  const std::optional<TensorDesc>& scale_cache;
};

/// The tensor whose last extent, that of axis 2, is a side's head dim.
struct HeadDim {
  std::string_view tensor, axis;  ///< "q", "head_dim_qk"
  std::int64_t extent = 0;
};

/// The side has codes of as many values in a row, with the scales that the format wants. Plain rows have the extent itself, and one of the
/// dtypes `rows`.
void check_kv_side(Checker& check, const KvSide& side, const HeadDim& head_dim, std::span<const DType> rows);

}  // namespace fovea::detail
