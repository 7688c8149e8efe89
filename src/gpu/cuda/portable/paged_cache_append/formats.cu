// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
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
Kernel kernel_of(std::int64_t head_dim) {
  return head_dim <= kWidestRow / 2 ? &append_format<kFormat, 1> : &append_format<kFormat, 2>;
}

Kernel kernel_of(KvFormat format, std::int64_t head_dim) {
  switch (format) {
    case KvFormat::int8_token: return kernel_of<KvFormat::int8_token>(head_dim);
    case KvFormat::e4m3_token: return kernel_of<KvFormat::e4m3_token>(head_dim);
    case KvFormat::int4_token: return kernel_of<KvFormat::int4_token>(head_dim);
    case KvFormat::e5m2: return kernel_of<KvFormat::e5m2>(head_dim);
    case KvFormat::nvfp4: return kernel_of<KvFormat::nvfp4>(head_dim);
    case KvFormat::mxfp4: return kernel_of<KvFormat::mxfp4>(head_dim);
    default: return kernel_of<KvFormat::mxfp8>(head_dim);
  }
}

/// Strides in bytes, of tensors whose elements have `size`.
detail::CacheStrides in_bytes(const detail::CacheStrides& strides, std::int64_t size) {
  return {strides.block * size, strides.token * size, strides.head * size};
}

/// The most bytes, up to 8, that divide the alignment of the cache's rows.
int store_bytes(const AppendSide& side) {
  const auto divides = [&](std::int64_t bytes) {
    const auto& strides = side.cache;
    return side.cache_alignment % bytes == 0 && strides.block % bytes == 0 && strides.token % bytes == 0 && strides.head % bytes == 0;
  };
  return divides(8) ? 8 : divides(4) ? 4 : 1;
}

FormatSide side_of(const AppendSide& from, const void* rows, void* cache, void* scales, const float* global) {
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
                  .load_packs = from.rows_alignment % 16 == 0 && from.row_stride % kLaneValues == 0 && from.head_stride % kLaneValues == 0,
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
  const FormatSide k = side_of(problem.k, args.k, args.k_cache, args.k_scale_cache, args.k_scale);
  const FormatSide v = side_of(problem.v, args.v, args.v_cache, args.v_scale_cache, args.v_scale);
  const auto rows = static_cast<int>(problem.tokens * problem.kv_heads);
  constexpr int kBlockRows = kFormatThreads / kRowLanes * kRowsOfLanes;
  const auto blocks = static_cast<unsigned>(detail::ceil_div(rows, kBlockRows));
  const auto launch_sides = [&](Kernel kernel, std::array<FormatSide, 2> sides, unsigned count) {
    const FormatParams params{.sides = {sides[0], sides[1]},
                              .slot_mapping = args.slot_mapping,
                              .slots = problem.blocks * problem.page,
                              .page = problem.page,
                              .heads = divmod_by(problem.kv_heads),
                              .rows = rows,
                              .dtype = problem.dtype};
    return launch(kernel, {.grid = dim3(blocks, count), .block = dim3(kFormatThreads)}, stream, params);
  };
  const Kernel for_k = kernel_of(problem.k.format, problem.k.head_dim), for_v = kernel_of(problem.v.format, problem.v.head_dim);
  const bool in_k = has_format(problem.k) && problem.k.head_dim > 0, in_v = has_format(problem.v) && problem.v.head_dim > 0;
  if (in_k && in_v && for_k == for_v) return launch_sides(for_k, {k, v}, 2);
  if (in_k) {
    if (Result<void> done = launch_sides(for_k, {k, k}, 1); !done) return done;
  }
  return in_v ? launch_sides(for_v, {v, v}, 1) : Result<void>{};
}

}  // namespace fovea::gpu::portable::append
