// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <string>

#include "gpu/cuda/portable/implementations.hpp"
#include "gpu/cuda/portable/latent_cache_conversion/dequantize.cuh"
#include "gpu/cuda/portable/latent_cache_conversion/quantize.cuh"
#include "gpu/plan_state.hpp"
#include "op/common/division.hpp"

namespace fovea::gpu::portable {
namespace {

using conversion::DequantizeParams;
using conversion::QuantizeParams;
using detail::LatentCacheConversionProblem;

/// The two directions and the parameters of their kernels.
struct Quantize : detail::QuantizeLatentCache {
  static constexpr std::string_view kName = "cuda.portable.quantize_latent_cache";
  using Params = QuantizeParams;
  template <CacheFormat kFormat, class T, bool kAligned>
  static constexpr auto kKernel = conversion::quantize<kFormat, T, kAligned>;
};
struct Dequantize : detail::DequantizeLatentCache {
  static constexpr std::string_view kName = "cuda.portable.dequantize_latent_cache";
  using Params = DequantizeParams;
  template <CacheFormat kFormat, class T, bool kAligned>
  static constexpr auto kKernel = conversion::dequantize<kFormat, T, kAligned>;
};

template <class Direction>
using Kernel = void (*)(typename Direction::Params);

/// Whether every chunk of every row and token lies at a multiple of its size.
bool is_aligned(const LatentCacheConversionProblem& problem) {
  constexpr std::int64_t kBytes = conversion::kChunkBytes;
  const detail::LatentCacheView& cache = problem.cache;
  const std::int64_t row_bytes = problem.row_stride * static_cast<std::int64_t>(size_of(problem.dtype));
  const bool rows = problem.rows_alignment % kBytes == 0 && (problem.tokens == 1 || row_bytes % kBytes == 0);
  return rows && cache.alignment % kBytes == 0 && (cache.blocks == 1 || cache.block_stride % kBytes == 0);
}

template <class Direction, CacheFormat kFormat, class T>
Kernel<Direction> kernel_of(bool aligned) {
  return aligned ? Direction::template kKernel<kFormat, T, true> : Direction::template kKernel<kFormat, T, false>;
}

template <class Direction, CacheFormat kFormat>
Kernel<Direction> kernel_of(DType dtype, bool aligned) {
  if (dtype == DType::f32) return kernel_of<Direction, kFormat, float>(aligned);
  return dtype == DType::f16 ? kernel_of<Direction, kFormat, __half>(aligned) : kernel_of<Direction, kFormat, __nv_bfloat16>(aligned);
}

template <class Direction>
Kernel<Direction> kernel_of(CacheFormat format, DType dtype, bool aligned) {
  switch (format) {
    case CacheFormat::v32_fp8: return kernel_of<Direction, CacheFormat::v32_fp8>(dtype, aligned);
    case CacheFormat::v4_fp8: return kernel_of<Direction, CacheFormat::v4_fp8>(dtype, aligned);
    case CacheFormat::v41_fp8:
    case CacheFormat::v41_fp8_planar: return kernel_of<Direction, CacheFormat::v41_fp8>(dtype, aligned);
    case CacheFormat::v41_fp4: return kernel_of<Direction, CacheFormat::v41_fp4>(dtype, aligned);
    case CacheFormat::rows: break;  // not packed: validation has refused it
  }
  return nullptr;
}

conversion::Layout layout_of(const PackedFormat& format, std::int64_t page) {
  return {.record = format.codes_at(1),
          .scales_begin = format.scales_at(0, page),
          .scales_record = format.scales_at(1, page) - format.scales_at(0, page),
          .rope_begin = format.rope_at(0)};
}

template <class Direction>
class State final : public PlanState<typename Direction::Problem, typename Direction::Args> {
  using Base = PlanState<typename Direction::Problem, typename Direction::Args>;
  using Args = typename Direction::Args;
  using Base::problem_;

 public:
  State(const typename Direction::Problem& problem, Device device)
      : Base(Direction::kName, problem, device), aligned_(is_aligned(problem)) {}

  std::string tuning() const override {
    const int tokens = conversion::tokens_of_warp(size_of(problem_.dtype));
    return std::string(tokens == 1 ? "a warp for each token, " : "a warp for each two tokens, ") +
           (aligned_ ? "16 bytes of a row a lane" : "element by element: not all is aligned to 16 bytes");
  }

 private:
  bool is_empty() const override { return problem_.tokens == 0; }

  Result<void> compute(const Args& args, Workspace, Stream stream, bool) const override {
    // Several times what a multiprocessor holds: each warp takes many tokens, and the last warps finish close together.
    const std::int64_t most = std::int64_t{64} * properties(this->device_)->multiprocessors;
    const std::int64_t of_block = conversion::kWarps * conversion::tokens_of_warp(size_of(problem_.dtype));
    const std::int64_t blocks = std::min(detail::ceil_div(problem_.tokens, of_block), most);
    const LaunchShape shape{.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(conversion::kThreads)};
    return launch(kernel_of<Direction>(problem_.cache.format, problem_.dtype, aligned_), shape, stream, params(args));
  }

  typename Direction::Params params(const Args& args) const {
    const detail::LatentCacheView& cache = problem_.cache;
    typename Direction::Params params{};
    params.rows = static_cast<decltype(params.rows)>(args.rows);
    params.cache = static_cast<decltype(params.cache)>(args.cache);
    params.slot_mapping = args.slot_mapping;
    params.tokens = problem_.tokens;
    params.row_stride = problem_.row_stride * static_cast<std::int64_t>(size_of(problem_.dtype));
    params.slots = cache.slots();
    params.page = cache.page;
    params.block_stride = cache.block_stride;
    params.layout = layout_of(*packed_format(cache.format), cache.page);
    params.exact = problem_.rule == ScaleRule::exact;
    return params;
  }

  bool aligned_;
};

template <class Direction>
detail::PlanResult<typename Direction::Args> plan(const typename Direction::Problem& problem, Device device) {
  if (auto reason = decline_device(device, kLowestCapability, kAnyLater)) return *reason;
  return std::shared_ptr<const detail::PlanState<typename Direction::Args>>(std::make_shared<State<Direction>>(problem, device));
}

template <class Operation>
constexpr auto kHandled = detail::handles<detail::QuantizeLatentCache>("rule (exact)");
template <>
constexpr auto kHandled<detail::DequantizeLatentCache> = detail::handles<detail::DequantizeLatentCache>();

template <class Direction, class Operation>
constexpr detail::Implementation<Operation> kRow{Direction::kName, "every packed format; f32, f16, bf16 rows", kHandled<Operation>,
                                                 Backend::cuda,    unavailable<kLowestCapability, kAnyLater>,  plan<Direction>};

}  // namespace

detail::Implementations<detail::QuantizeLatentCache> implementations(detail::QuantizeLatentCache) {
  return {&kRow<Quantize, detail::QuantizeLatentCache>, 1};
}
detail::Implementations<detail::DequantizeLatentCache> implementations(detail::DequantizeLatentCache) {
  return {&kRow<Dequantize, detail::DequantizeLatentCache>, 1};
}

}  // namespace fovea::gpu::portable
