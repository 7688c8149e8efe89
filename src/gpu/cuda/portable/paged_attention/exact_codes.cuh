// SPDX-License-Identifier: Apache-2.0
/// One element of a cache of codes, for rows that scalar code computes again.
#pragma once

#include <type_traits>

#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/element.cuh"
#include "gpu/cuda/common/quantize.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/portable/paged_attention/decode.cuh"
#include "gpu/cuda/portable/paged_attention/formats.hpp"
#include "gpu/cuda/portable/paged_attention/params.hpp"

namespace fovea::gpu::portable::paged_attention {

/// A head's codes in a slot, and its scales. Without codes it is NaN.
template <class Format>
struct CodedRow {
  const std::byte *codes, *scales;
  bool half;  // a token's scale is f16

  __device__ float at(int column) const {
    if (codes == nullptr) return NAN;
    const auto byte = static_cast<unsigned>(codes[column * CacheFormat<Format>::kBits / 8]);
    if constexpr (CacheFormat<Format>::kBits == 4) return nibble(column, byte >> (column % 2 * 4) & 0xf);
    if constexpr (std::is_same_v<Format, E5m2Codes>) return __half2float(__ushort_as_half(static_cast<unsigned short>(byte << 8)));
    if constexpr (CacheFormat<Format>::kBlockPowers) {
      return floats_from_halves(halves_from_e4m3(byte)).x * f32_from_ue8m0(static_cast<unsigned>(scales[column / 32]));
    }
    const float scale = half ? __half2float(*reinterpret_cast<const __half*>(scales)) : *reinterpret_cast<const float*>(scales);
    if constexpr (std::is_same_v<Format, Int8Codes>) return static_cast<float>(static_cast<signed char>(byte)) * scale;
    return __half2float(__ushort_as_half(halves_from_e4m3(byte) & 0xffff)) * scale;
  }

 private:
  __device__ float nibble(int column, unsigned code) const {
    if constexpr (CacheFormat<Format>::kZeroPoints) {
      const unsigned bits = *reinterpret_cast<const unsigned*>(scales);
      return (static_cast<float>(code) - static_cast<float>(bits & 0xf)) * __uint_as_float(bits & ~0xfu);
    } else {
      const float value = floats_from_halves(halves_from_e2m1(code)).x * kE2m1Unit;
      if constexpr (CacheFormat<Format>::kBlockPowers) return value * f32_from_ue8m0(static_cast<unsigned>(scales[column / 32]));
      const auto scale = static_cast<unsigned>(scales[column / 16]);
      return value * floats_from_halves(halves_from_e4m3(scale)).x;
    }
  }
};

/// The same for kernels that decode any format.
template <class Element>
struct DecodedRow {
  const std::byte *codes, *scales;
  RowCodes of;
  bool half;  // a token's scale is f16

  __device__ float at(int column) const {
    if (codes == nullptr) return NAN;
    if (of.elements) return to_f32(reinterpret_cast<const Element*>(codes)[column]);
    const RowScale scale = row_scale(of, scales, half);
    const unsigned block = of.group != 0 ? static_cast<unsigned>(scales[column / of.group]) : 0;
    if (is_nibble(of.code)) {
      const std::uint32_t word[1] = {static_cast<std::uint32_t>(codes[column / 2]) >> (column % 2 * 4)};
      return unpack<Element>(decoded<Element>(of, word, scale.zero, block).x).x * scale.factor;
    }
    const std::uint32_t words[2] = {static_cast<std::uint32_t>(codes[column]), 0};
    return unpack<Element>(decoded<Element>(of, words, scale.zero, block).x).x * scale.factor;
  }
};

/// As ExactRow of gpu/cuda/common/exact_row.cuh, over codes.
template <class Query, class Format>
struct ExactCodedRow {
  const Query* q;
  int head_dim_qk, head_dim_v;
  static constexpr int kColumns = 256 / 32;

  /// `rows_of(key)`: the CodedRows of a key and its value.
  template <class RowsOf, class Transform>
  __device__ void operator()(int begin, int end, float scale_log2, const RowsOf& rows_of, const Transform& transformed,
                             float (&columns)[kColumns]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    SerialSoftmax<Warp> softmax{scale_log2};
#pragma unroll
    for (float& x : columns) x = 0;
    for (int key = begin; key < end; ++key) {
      const auto [k, v] = rows_of(key);
      float score = 0;
      for (int column = lane; column < head_dim_qk; column += 32) score = fmaf(to_f32(q[column]), k.at(column), score);
      const float weight = softmax(transformed(Warp::sum_of_warp(score)), columns);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int column = 32 * c + lane;
        if (column < head_dim_v) columns[c] = fmaf(weight, v.at(column), columns[c]);
      }
    }
#pragma unroll
    for (float& x : columns) x /= softmax.sum;
  }
};

}  // namespace fovea::gpu::portable::paged_attention
