// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>

#include "gpu/hip/cdna/implementations.hpp"
#include "gpu/hip/cdna/paged_cache_append/params.hpp"
#include "gpu/hip/plan_state.hpp"
#include "op/paged_cache_append/problem.hpp"

namespace fovea::gpu::cdna {
namespace append {
namespace {

using Problem = detail::PagedCacheAppendProblem;

constexpr std::string_view kName = "hip.cdna.paged_cache_append";
constexpr std::int64_t kLimit = std::int64_t{1} << 30;

Side side_of(const detail::AppendSide& from, const void* rows, void* cache, const float* scale) {
  return {.rows = rows,
          .cache = cache,
          .scale = from.scale ? scale : nullptr,
          .row_stride = from.row_stride,
          .head_stride = from.head_stride,
          .scale_stride = from.scale ? from.scale->head_stride : 0,
          .strides = from.cache,
          .head_dim = static_cast<int>(from.head_dim)};
}

class State final : public hip::PlanState<Problem, PagedCacheAppendArgs> {
 public:
  State(const Problem& problem, Device device) : PlanState(kName, problem, device) {}

  Result<void> load() {
    std::string suffix = problem_.dtype == DType::f32 ? "4_bytes" : "2_bytes";
    if (problem_.cache_dtype == DType::e4m3) suffix = std::string(name_of(problem_.dtype)).append("_to_e4m3");
    Result<hip::FunctionHandle> found = hip::find_kernel(device_.ordinal, "append", "paged_cache_append_" + suffix);
    if (!found) return found.error();
    kernel_ = *found;
    return {};
  }

  std::string tuning() const override { return "a workgroup for each token" FOVEA_HIP_STATUS; }

 private:
  bool is_empty() const override {
    return problem_.tokens == 0 || problem_.blocks == 0 || problem_.kv_heads * (problem_.k.head_dim + problem_.v.head_dim) == 0;
  }

  Result<void> compute(const PagedCacheAppendArgs& args, Workspace, Stream stream, bool) const override {
    const Params params{
        .sides = {side_of(problem_.k, args.k, args.k_cache, args.k_scale), side_of(problem_.v, args.v, args.v_cache, args.v_scale)},
        .slot_mapping = args.slot_mapping,
        .tokens = problem_.tokens,
        .slots = problem_.blocks * problem_.page,
        .page = problem_.page,
        .kv_heads = static_cast<int>(problem_.kv_heads)};
    return hip::launch(kernel_, {.grid = {static_cast<unsigned>(problem_.tokens), 1, 1}, .threads = kThreads}, stream, &params);
  }

  hip::FunctionHandle kernel_ = nullptr;
};

detail::PlanResult<PagedCacheAppendArgs> plan(const Problem& problem, Device device) {
  if (auto reason = hip::decline_device(device)) return *reason;
  if (problem.tokens > hip::kMostWorkgroups) {
    return detail::declined("k.shape (tokens)", problem.tokens, "at most " + std::to_string(hip::kMostWorkgroups));
  }
  for (const std::int64_t row : {problem.kv_heads * problem.k.head_dim, problem.kv_heads * problem.v.head_dim}) {
    if (row >= kLimit) return detail::declined("k.shape (kv_head * dim)", row, "below 2^30");
  }
  auto state = std::make_shared<State>(problem, device);
  if (device.capability == 0) {
    if (Result<void> loaded = state->load(); !loaded) return loaded.error();
  }
  return std::shared_ptr<const detail::PlanState<PagedCacheAppendArgs>>(std::move(state));
}

constexpr detail::Implementation<detail::PagedCacheAppend> kRow{kName,
                                                                "f32, f16, bf16 rows; same dtype or e4m3 caches" FOVEA_HIP_STATUS,
                                                                detail::handles<detail::PagedCacheAppend>("k_scale", "v_scale"),
                                                                Backend::hip,
                                                                hip::unavailable,
                                                                plan};

}  // namespace
}  // namespace append

detail::Implementations<detail::PagedCacheAppend> implementations(detail::PagedCacheAppend) { return {&append::kRow, 1}; }

}  // namespace fovea::gpu::cdna
