// SPDX-License-Identifier: Apache-2.0
/// int8 scores and the quantisers of one instruction set. The products are integers below 2^24, so their sums are exact.
#pragma once

#include "cpu/attention/gemm.hpp"
#include "cpu/attention/pack.hpp"
#include "cpu/attention/softmax.hpp"

namespace fovea::cpu::FOVEA_ISA {

/// c = (a * b) * row scale * key scale
template <class Math>
struct Int8Tile {
  const typename Math::Operand* a;
  std::int64_t a_stride;
  const typename Math::Operand* b;  // [k / kPair][kPanel][kPair]
  int k;
  float* c;
  std::int64_t c_stride;
  const float *row_scales, *key_scales;
  const std::int32_t* start;  // [kPanel] initial values of the sums
};

template <class Math, int kRows>
static void int8_micro_kernel(const Int8Tile<Math>& tile) {
  typename Math::Reg sum[kRows][kPanelVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < kPanelVectors; ++j) sum[r][j] = Math::begin(tile.start + j * kLanes);
  }
  SideBySide<typename Math::Operand, kRows> a(tile.a, tile.a_stride);
  const auto* b = tile.b;
  for (int k = 0; k < tile.k; k += Math::kPair) {
    typename Math::Reg right[kPanelVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kPanelVectors; ++j) right[j] = Math::load_operands(b + j * kLanes * Math::kPair);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const typename Math::Reg left = Math::repeat(a.row(r));
#pragma GCC unroll 4
      for (int j = 0; j < kPanelVectors; ++j) sum[r][j] = Math::multiply_add(left, right[j], sum[r][j]);
    }
    a.advance(Math::kPair);
    b += kPanel * Math::kPair;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const Vec row = broadcast(tile.row_scales + r);
#pragma GCC unroll 4
    for (int j = 0; j < kPanelVectors; ++j) {
      const Vec scale = mul(row, load(F32{}, tile.key_scales + j * kLanes));
      store(F32{}, tile.c + r * tile.c_stride + j * kLanes, mul(Math::total(sum[r][j]), scale));
    }
  }
}

template <class Math, int kRows = kBlockRows>
static void int8_multiply(int rows, const Int8Tile<Math>& tile) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return int8_micro_kernel<Math, kRows>(tile);
    return int8_multiply<Math, kRows - 1>(rows, tile);
  }
}

template <class Math>
static void int8_scores(const ScoreTile& tile) {
  using Operand = typename Math::Operand;
  std::int32_t start[kPanel] = {};
  int panel = -1;  // that `start` is of
  each_panel(tile, [&](const RowBlock& block, int key) {
    const Operand* keys = static_cast<const Operand*>(tile.keys) + static_cast<std::int64_t>(key) * tile.head_dim;
    if (key != panel) Math::prepare(keys, tile.head_dim, start);
    panel = key;
    int8_multiply<Math>(block.rows, {.a = static_cast<const Operand*>(tile.q) + block.row * tile.q_stride,
                                     .a_stride = tile.q_stride,
                                     .b = keys,
                                     .k = tile.head_dim,
                                     .c = tile.scores + block.row * tile.score_stride + key,
                                     .c_stride = tile.score_stride,
                                     .row_scales = tile.q_scales + block.row,
                                     .key_scales = tile.k_scales + key,
                                     .start = start});
  });
}

template <class Math>
inline constexpr AttentionKernels kInt8Kernels{
    .arithmetic = Math::kArithmetic,
    .block_rows = kBlockRows,
    .panel = kPanel,
    .depth = 1,  // head dims are multiples of what one transposition packs
    .operand_bytes = sizeof(float),
    .qk_operand_bytes = sizeof(typename Math::Operand),
    .row_bytes = kRowBytes,
    .tile_bytes = kTileBytes,
    .load_q = {nullptr, nullptr, nullptr, nullptr, load_q<Math, I8>},
    .pack_keys = {nullptr, nullptr, nullptr, nullptr, pack_keys<Math, I8>},
    .pack_values = {nullptr, pack_values<F32Math, F16>, nullptr, pack_values<F32Math, E4M3>, nullptr},
    .scores = int8_scores<Math>,
    .softmax = softmax<F32Math>,
    .values = values<F32Math>,
};

template <class S>
FOVEA_INLINE Vec centred(Row source, const float* mean, int i) {
  return sub(load(S{}, static_cast<const typename S::Code*>(source) + i), load(F32{}, mean + i));
}

template <class S>
static float largest_centred(Row source, const float* mean, int count) {
  Vec most = zero(), probe = zero();  // x * 0 is NaN where x is not finite
  for (int i = 0; i < count; i += kLanes) {
    const Vec x = centred<S>(source, mean, i);
    most = max(abs(x), most);
    probe = fma(x, zero(), probe);
  }
  return reduce_max(most) + reduce_add(probe);
}

template <class S>
static void encode_int8(void* codes, Row source, const float* mean, float factor, int count) {
  const Vec by = splat(factor);
  for (int i = 0; i < count; i += kLanes) store(I8{}, static_cast<std::int8_t*>(codes) + i, mul(centred<S>(source, mean, i), by));
}

template <class S>
static void largest_channels(float* amax, float* probe, Row source, const float* mean, int count) {
  for (int i = 0; i < count; i += kLanes) {
    const Vec x = centred<S>(source, mean, i);
    store(F32{}, amax + i, max(abs(x), load(F32{}, amax + i)));
    store(F32{}, probe + i, fma(x, zero(), load(F32{}, probe + i)));
  }
}

template <class S, class To>
static void encode_channels(void* codes, Row source, const float* mean, const float* factor, int count) {
  for (int i = 0; i < count; i += kLanes) {
    store(To{}, static_cast<typename To::Code*>(codes) + i, mul(centred<S>(source, mean, i), load(F32{}, factor + i)));
  }
}

inline constexpr QuantizeKernels kQuantizeKernels{
    .largest = {largest_centred<F32>, largest_centred<F16>, largest_centred<BF16>},
    .encode_int8 = {encode_int8<F32>, encode_int8<F16>, encode_int8<BF16>},
    .channels = {largest_channels<F32>, largest_channels<F16>, largest_channels<BF16>},
    .encode_e4m3 = {encode_channels<F32, E4M3>, encode_channels<F16, E4M3>, encode_channels<BF16, E4M3>},
    .encode_f16 = {encode_channels<F32, F16>, encode_channels<F16, F16>, encode_channels<BF16, F16>},
};

}  // namespace fovea::cpu::FOVEA_ISA
