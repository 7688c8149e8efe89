// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <memory>
#include <string>

#include "gpu/cuda/portable/implementations.hpp"
#include "gpu/cuda/portable/paged_cache_append/kernel.cuh"
#include "gpu/plan_state.hpp"
#include "op/paged_cache_append/validate.hpp"

namespace fovea::gpu::portable {
namespace {

using detail::AppendSide;
using detail::PagedCacheAppendProblem;
using Kernel = void (*)(append::Params);

constexpr std::string_view kName = "cuda.portable.paged_cache_append";

bool is_aligned(const PagedCacheAppendProblem& problem, const AppendSide& side) {
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

class State final : public PlanState<PagedCacheAppendProblem, PagedCacheAppendArgs> {
 public:
  State(const PagedCacheAppendProblem& problem, Device device)
      : PlanState(kName, problem, device), aligned_(is_aligned(problem, problem.k) && is_aligned(problem, problem.v)) {}

  std::string tuning() const override {
    return std::to_string(threads_of_token(problem_.k)) + " threads for a token's k, " + std::to_string(threads_of_token(problem_.v)) +
           " for its v; " + (aligned_ ? "16 bytes of a row a load" : "element by element: not all is aligned to 16 bytes");
  }

 private:
  bool is_empty() const override { return problem_.tokens * problem_.kv_heads * problem_.blocks == 0; }

  Result<void> compute(const PagedCacheAppendArgs& args, Workspace, Stream stream, bool) const override {
    const append::Params params{
        .sides = {side(problem_.k, args.k, args.k_cache, args.k_scale), side(problem_.v, args.v, args.v_cache, args.v_scale)},
        .slot_mapping = args.slot_mapping,
        .tokens = problem_.tokens,
        .kv_heads = problem_.kv_heads,
        .slots = problem_.blocks * problem_.page,
        .page = problem_.page};
    const std::int64_t tokens_of_block = append::kThreads / std::max(params.sides[0].threads, params.sides[1].threads);
    // Several times what a multiprocessor holds: each thread takes many tokens, and the last ones finish close together.
    const std::int64_t most = std::int64_t{64} * properties(device_)->multiprocessors;
    const std::int64_t blocks = std::min((problem_.tokens + tokens_of_block - 1) / tokens_of_block, most);
    return launch(kernel_of(problem_, aligned_), {.grid = dim3(static_cast<unsigned>(blocks), 2), .block = dim3(append::kThreads)}, stream,
                  params);
  }

  std::int64_t packs_of_head(const AppendSide& side) const {
    return side.head_dim / (aligned_ ? append::pack_of(size_of(problem_.dtype)) : 1);
  }

  /// As many as give each thread a batch of packs.
  int threads_of_token(const AppendSide& side) const {
    const std::int64_t batches = (packs_of_head(side) * problem_.kv_heads + append::kBatch - 1) / append::kBatch;
    return static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(std::clamp<std::int64_t>(batches, 1, append::kThreads))));
  }

  append::Side side(const AppendSide& from, const void* rows, void* cache, const float* scales) const {
    return {.rows = rows,
            .cache = cache,
            .scales = from.scale ? scales : nullptr,
            .row_stride = from.row_stride,
            .head_stride = from.head_stride,
            .scale_stride = from.scale ? from.scale->head_stride : 0,
            .strides = from.cache,
            .packs_of_head = packs_of_head(from),
            .threads = threads_of_token(from)};
  }

  bool aligned_;
};

detail::PlanResult<PagedCacheAppendArgs> plan(const PagedCacheAppendProblem& problem, Device device) {
  if (auto reason = decline_device(device, kLowestCapability, kAnyLater)) return *reason;
  return std::shared_ptr<const detail::PlanState<PagedCacheAppendArgs>>(std::make_shared<State>(problem, device));
}

constexpr detail::Implementation<detail::PagedCacheAppend> kRow{
    kName,         "f32, f16, bf16 rows; same dtype or e4m3 caches", detail::handles<detail::PagedCacheAppend>("k_scale", "v_scale"),
    Backend::cuda, unavailable<kLowestCapability, kAnyLater>,        plan};

}  // namespace

detail::Implementations<detail::PagedCacheAppend> implementations(detail::PagedCacheAppend) { return {&kRow, 1}; }

}  // namespace fovea::gpu::portable
