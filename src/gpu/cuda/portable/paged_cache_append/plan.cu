// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <string>

#include "gpu/cuda/portable/implementations.hpp"
#include "gpu/cuda/portable/paged_cache_append/formats.hpp"
#include "gpu/cuda/portable/paged_cache_append/kernel.cuh"
#include "gpu/plan_state.hpp"
#include "op/common/division.hpp"
#include "op/paged_cache_append/problem.hpp"

namespace fovea::gpu::portable {
namespace {

using detail::AppendSide;
using detail::PagedCacheAppendProblem;
using Kernel = void (*)(append::Params);

constexpr std::string_view kName = "cuda.portable.paged_cache_append";

bool is_aligned(const PagedCacheAppendProblem& problem, const AppendSide& side) {
  if (append::has_format(side)) return true;  // another kernel's
  const std::int64_t pack = append::pack_of(size_of(problem.dtype));
  const std::int64_t cache_bytes = pack * static_cast<std::int64_t>(size_of(problem.cache_dtype));
  const auto whole = [&](std::int64_t stride) { return stride % pack == 0; };
  const bool pointers = side.rows_alignment % append::kPackBytes == 0 && side.cache_alignment % cache_bytes == 0;
  const bool strides =
      whole(side.row_stride) && whole(side.head_stride) && whole(side.cache.block) && whole(side.cache.token) && whole(side.cache.head);
  return whole(side.head_dim) && (side.head_dim == 0 || (pointers && strides));
}

template <class From, class To>
Kernel kernel_of(bool aligned) {
  return aligned ? append::append<From, To, append::pack_of(sizeof(From))> : append::append<From, To, 1>;
}

Kernel kernel_of(const PagedCacheAppendProblem& problem, bool aligned) {
  if (problem.dtype == problem.cache_dtype && size_of(problem.dtype) == 2) return kernel_of<std::uint16_t, std::uint16_t>(aligned);
  if (problem.dtype == problem.cache_dtype) return kernel_of<std::uint32_t, std::uint32_t>(aligned);
  if (problem.dtype == DType::f32) return kernel_of<float, __nv_fp8_storage_t>(aligned);
  return problem.dtype == DType::f16 ? kernel_of<__half, __nv_fp8_storage_t>(aligned)
                                     : kernel_of<__nv_bfloat16, __nv_fp8_storage_t>(aligned);
}

constexpr std::int64_t kLimit = std::int64_t{1} << 30;  // of counts that the kernel keeps in ints

class State final : public PlanState<PagedCacheAppendProblem, PagedCacheAppendArgs> {
 public:
  State(const PagedCacheAppendProblem& problem, Device device)
      : PlanState(kName, problem, device), aligned_(is_aligned(problem, problem.k) && is_aligned(problem, problem.v)) {
    const std::int64_t packs = std::max({packs_of_row(problem.k), packs_of_row(problem.v), std::int64_t{1}});
    blocks_of_row_ = detail::ceil_div(packs, append::kThreads);
    columns_ = std::max(detail::ceil_div(packs, blocks_of_row_), std::int64_t{append::kTokens});  // a thread finds one slot at most
    rows_ = append::kThreads / columns_;
  }

  std::string tuning() const override {
    return std::to_string(columns_) + " x " + std::to_string(rows_) + " threads a block, " + std::to_string(append::kTokens) +
           " tokens a thread, " + (aligned_ ? "16 bytes of a row a load" : "element by element: not all is aligned to 16 bytes");
  }

  std::int64_t blocks() const { return std::min(detail::ceil_div(problem_.tokens, rows_ * append::kTokens), kLimit) * blocks_of_row_; }

 private:
  bool is_empty() const override { return problem_.tokens * problem_.kv_heads * problem_.blocks == 0; }

  Result<void> compute(const PagedCacheAppendArgs& args, Workspace, Stream stream, bool) const override {
    if (append::has_format(problem_.k) || append::has_format(problem_.v)) {
      if (Result<void> done = append::launch_formats(problem_, args, stream); !done) return done;
    }
    if (append::has_format(problem_.k) && append::has_format(problem_.v)) return {};
    const append::Params params{
        .sides = {side(problem_.k, args.k, args.k_cache, args.k_scale), side(problem_.v, args.v, args.v_cache, args.v_scale)},
        .slot_mapping = args.slot_mapping,
        .tokens = problem_.tokens,
        .slots = problem_.blocks * problem_.page,
        .page = problem_.page,
        .blocks_of_row = divmod_by(blocks_of_row_)};
    const dim3 block(static_cast<unsigned>(columns_), static_cast<unsigned>(rows_));
    return launch(kernel_of(problem_, aligned_), {.grid = dim3(static_cast<unsigned>(blocks()), 2), .block = block}, stream, params);
  }

  std::int64_t packs_of_head(const AppendSide& side) const {
    if (append::has_format(side)) return 0;
    return side.head_dim / (aligned_ ? append::pack_of(size_of(problem_.dtype)) : 1);
  }

  std::int64_t packs_of_row(const AppendSide& side) const { return packs_of_head(side) * problem_.kv_heads; }

  append::Side side(const AppendSide& from, const void* rows, void* cache, const float* scales) const {
    return {.rows = rows,
            .cache = cache,
            .scales = from.scale ? scales : nullptr,
            .row_stride = from.row_stride,
            .head_stride = from.head_stride,
            .scale_stride = from.scale ? from.scale->head_stride : 0,
            .strides = from.cache,
            .packs = static_cast<int>(packs_of_row(from)),
            .packs_of_head = divmod_by(packs_of_head(from))};
  }

  bool aligned_;
  std::int64_t blocks_of_row_;   // share the packs of a row
  std::int64_t columns_, rows_;  // of threads in a block
};

detail::PlanResult<PagedCacheAppendArgs> plan(const PagedCacheAppendProblem& problem, Device device) {
  if (auto reason = decline_device(device, kLowestCapability, kAnyLater)) return *reason;
  const std::int64_t elements = std::min(problem.kv_heads, kLimit) * std::min(std::max(problem.k.head_dim, problem.v.head_dim), kLimit);
  if (elements >= kLimit) return detail::declined("k.shape, v.shape (kv_head times head_dim)", elements, "below 2^30");
  if (Result<void> good = append::accept_formats(problem); !good) return good.error();
  auto state = std::make_shared<State>(problem, device);
  if (state->blocks() >= kLimit) return detail::declined("k.shape, v.shape (thread blocks)", state->blocks(), "below 2^30");
  return std::shared_ptr<const detail::PlanState<PagedCacheAppendArgs>>(std::move(state));
}

constexpr detail::Implementation<detail::PagedCacheAppend> kRow{
    kName,
    "f32, f16, bf16 rows; caches of the same dtype, e4m3 or every format",
    detail::handles<detail::PagedCacheAppend>("k_scale", "v_scale", "k_format", "v_format"),
    Backend::cuda,
    unavailable<kLowestCapability, kAnyLater>,
    plan};

}  // namespace

detail::Implementations<detail::PagedCacheAppend> implementations(detail::PagedCacheAppend) { return {&kRow, 1}; }

}  // namespace fovea::gpu::portable
