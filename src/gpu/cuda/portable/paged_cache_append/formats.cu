// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <bit>
#include <string>

#include "gpu/cuda/portable/paged_cache_append/format_rows.cuh"
#include "gpu/cuda/portable/paged_cache_append/formats.hpp"
#include "gpu/device_plan.hpp"
#include "op/common/checks.hpp"

namespace fovea::gpu::portable::append {
namespace {

using detail::AppendSide;
using detail::PagedCacheAppendProblem;
using Kernel = void (*)(FormatParams);

constexpr std::int64_t kLimit = std::int64_t{1} << 30;  // of rows, which kernels count in ints

template <KvFormat kFormat>
Kernel kernel_of(DType dtype) {
  if (dtype == DType::f32) return &append_format<kFormat, float>;
  return dtype == DType::f16 ? &append_format<kFormat, __half> : &append_format<kFormat, __nv_bfloat16>;
}

Kernel kernel_of(KvFormat format, DType dtype) {
  switch (format) {
    case KvFormat::int8_token: return kernel_of<KvFormat::int8_token>(dtype);
    case KvFormat::e4m3_token: return kernel_of<KvFormat::e4m3_token>(dtype);
    case KvFormat::int4_token: return kernel_of<KvFormat::int4_token>(dtype);
    case KvFormat::e5m2: return kernel_of<KvFormat::e5m2>(dtype);
    case KvFormat::nvfp4: return kernel_of<KvFormat::nvfp4>(dtype);
    case KvFormat::mxfp4: return kernel_of<KvFormat::mxfp4>(dtype);
    default: return kernel_of<KvFormat::mxfp8>(dtype);
  }
}

/// Strides in bytes, of tensors whose elements have `size`.
detail::CacheStrides in_bytes(const detail::CacheStrides& strides, std::int64_t size) {
  return {strides.block * size, strides.token * size, strides.head * size};
}

/// All codes of a lane, four bytes or one: the most that divides the alignment of the cache's rows.
int store_bytes(const AppendSide& side) {
  const auto divides = [&](std::int64_t bytes) {
    const auto& strides = side.cache;
    return side.cache_alignment % bytes == 0 && strides.block % bytes == 0 && strides.token % bytes == 0 && strides.head % bytes == 0;
  };
  const KvRowFormat* format = kv_row_format(side.format);
  const int lane = format == nullptr ? 1 : kLaneValues * format->code_bits() / 8;
  return divides(lane) ? lane : divides(4) ? 4 : 1;
}

bool has_packs(const AppendSide& side, DType dtype) {
  const auto whole = [pack = 16 / static_cast<std::int64_t>(size_of(dtype))](std::int64_t count) { return count % pack == 0; };
  return side.rows_alignment % 16 == 0 && whole(side.row_stride) && whole(side.head_stride) && whole(side.head_dim);
}

FormatSide side_of(const AppendSide& from, DType dtype, const void* rows, void* cache, void* scales, const float* global) {
  FormatSide side{.rows = rows,
                  .cache = static_cast<std::byte*>(cache),
                  .scales = static_cast<std::byte*>(scales),
                  .global = from.scale ? global : nullptr,
                  .row_stride = from.row_stride,
                  .head_stride = from.head_stride,
                  .global_stride = from.scale ? from.scale->head_stride : 0,
                  .strides = from.cache,
                  .scale_strides = {},
                  .head_dim = static_cast<int>(from.head_dim),
                  .store_bytes = store_bytes(from),
                  .load_packs = has_packs(from, dtype),
                  .half_scales = false};
  if (from.scale_cache) {
    side.scale_strides = in_bytes(detail::cache_strides(*from.scale_cache), static_cast<std::int64_t>(size_of(from.scale_cache->dtype)));
    side.half_scales = from.scale_cache->dtype == DType::f16;
  }
  return side;
}

}  // namespace

Result<void> accept_formats(const PagedCacheAppendProblem& problem) {
  for (const AppendSide* side : {&problem.k, &problem.v}) {
    if (has_format(*side) && side->head_dim > kWidestRow) return detail::declined("head_dim", side->head_dim, "at most 256, with k_format");
  }
  const bool any = has_format(problem.k) || has_format(problem.v);
  const std::int64_t rows = std::min(problem.tokens, kLimit) * std::min(problem.kv_heads, kLimit);
  if (any && rows >= kLimit) return detail::declined("k.shape (tokens times kv_head)", rows, "below 2^30");
  return {};
}

Result<void> launch_formats(const PagedCacheAppendProblem& problem, const PagedCacheAppendArgs& args, Stream stream) {
  const DType dtype = problem.dtype;
  const FormatSide k = side_of(problem.k, dtype, args.k, args.k_cache, args.k_scale_cache, args.k_scale);
  const FormatSide v = side_of(problem.v, dtype, args.v, args.v_cache, args.v_scale_cache, args.v_scale);
  const auto rows = static_cast<int>(problem.tokens * problem.kv_heads);
  const auto launch_sides = [&](Kernel kernel, std::array<FormatSide, 2> sides, unsigned count) {
    const int widest = std::max(sides[0].head_dim, sides[1].head_dim), lanes = detail::ceil_div(widest, kLaneValues);
    const FormatParams params{.sides = {sides[0], sides[1]},
                              .slot_mapping = args.slot_mapping,
                              .slots = problem.blocks * problem.page,
                              .page = problem.page,
                              .heads = divmod_by(problem.kv_heads),
                              .rows = rows,
                              .lanes_log = static_cast<int>(std::bit_width(static_cast<unsigned>(lanes - 1)))};
    const auto blocks = static_cast<unsigned>(detail::ceil_div(rows, kFormatThreads >> params.lanes_log));
    return launch(kernel, {.grid = dim3(blocks, count), .block = dim3(kFormatThreads)}, stream, params);
  };
  const Kernel for_k = kernel_of(problem.k.format, dtype), for_v = kernel_of(problem.v.format, dtype);
  const bool in_k = has_format(problem.k) && problem.k.head_dim > 0, in_v = has_format(problem.v) && problem.v.head_dim > 0;
  if (in_k && in_v && for_k == for_v) return launch_sides(for_k, {k, v}, 2);
  if (in_k) {
    if (Result<void> done = launch_sides(for_k, {k, k}, 1); !done) return done;
  }
  return in_v ? launch_sides(for_v, {v, v}, 1) : Result<void>{};
}

}  // namespace fovea::gpu::portable::append
