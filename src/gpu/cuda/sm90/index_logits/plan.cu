// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "gpu/cuda/common/attention_plan.hpp"
#include "gpu/cuda/sm90/implementations.hpp"
#include "gpu/cuda/sm90/index_logits/decode/kernel.cuh"
#include "gpu/cuda/sm90/index_logits/kernel.cuh"
#include "gpu/cuda/sm90/index_logits/resident/kernel.cuh"
#include "gpu/plan_state.hpp"
#include "gpu/tensor_map.hpp"
#include "op/common/division.hpp"
#include "op/index_logits/keys.hpp"
#include "op/index_logits/problem.hpp"

namespace fovea::gpu::sm90 {
namespace {

using detail::declined, detail::IndexLogitsProblem;
using indexer::Config, indexer::Params;

constexpr std::string_view kName = "cuda.sm90.index_logits";
constexpr std::int64_t kCountLimit = std::int64_t{1} << 30, kStrideLimit = std::int64_t{1} << 40;
constexpr int kTilesOfCta = 8;  // at least, where the rows suffice
constexpr int kScaleAlignment = 16;
constexpr std::int64_t kMostSequences = 4096;  // whose costs a warp sums

/// Keys of one page, or of flat keys.
int box_of(const IndexLogitsProblem& problem) {
  return problem.paged ? static_cast<int>(std::gcd<std::int64_t>(problem.page, indexer::kMostBox)) : indexer::kMostBox;
}

/// An instance: the queries and keys that it takes at once, and its launch.
struct Kernel {
  int heads;            ///< columns of an MMA that a query takes
  int queries;          ///< that are resident; 0: keys are, of a group that the plan chooses
  int keys;             ///< of a stage
  bool aligned_scales;  ///< of each page: contiguous, and aligned to kScaleAlignment
  int (*stage_cost)(int rows);
  CudaStatus (*launch)(const Params& params, int ordinal, Stream stream);
};

/// `kProgrammatic`: the kernel itself waits for those before it.
template <auto kKernel, class Config, class Storage, bool kProgrammatic = false>
CudaStatus launch_kernel(const Params& params, int ordinal, Stream stream) {
  static_assert(sizeof(Storage) <= 227 * 1024);
  if (const CudaStatus good = allow_shared_bytes<kKernel>(ordinal, sizeof(Storage)); !good) return good;
  const LaunchShape shape{
      .grid = dim3(params.ctas), .block = dim3(Config::kThreads), .shared_bytes = sizeof(Storage), .programmatic = kProgrammatic};
  return launch(kKernel, shape, stream, params);
}

template <int kHeads>
constexpr Kernel with_resident_keys() {
  using C = Config<kHeads>;
  return {.heads = kHeads,
          .queries = 0,
          .keys = C::kKeys,
          .aligned_scales = false,
          .stage_cost = &C::stage_cost,
          .launch = &launch_kernel<&indexer::index_logits<C>, C, indexer::Storage<C>>};
}
template <int kHeads>
constexpr Kernel with_resident_queries() {
  using C = indexer::resident::Config<kHeads>;
  return {.heads = kHeads,
          .queries = C::kQueries,
          .keys = C::kKeys,
          .aligned_scales = false,
          .stage_cost = &C::stage_cost,
          .launch = &launch_kernel<&indexer::resident::index_logits<C>, C, indexer::resident::Storage<C>>};
}
template <int kHeads, int kQueries>
constexpr Kernel for_decode() {
  using C = indexer::decode::Config<kHeads, kQueries>;
  return {.heads = kHeads,
          .queries = kQueries,
          .keys = C::kKeys,
          .aligned_scales = true,
          .stage_cost = &C::stage_cost,
          .launch = &launch_kernel<&indexer::decode::index_logits<C>, C, indexer::decode::Storage<C>, true>};
}

/// Takes any call.
Kernel general_kernel(const IndexLogitsProblem& problem) {
  return problem.heads <= 32 ? with_resident_keys<32>() : with_resident_keys<64>();
}

Kernel kernel_of(const IndexLogitsProblem& problem) {
  const bool few = problem.heads <= 32, many = problem.heads > 64;
  if (!problem.paged) {
    const Kernel queries = few ? with_resident_queries<32>() : with_resident_queries<64>();
    return !many && problem.rows >= queries.queries ? queries : general_kernel(problem);
  }
  const bool aligned = problem.scale_token == 1 && problem.scale_block * static_cast<int>(sizeof(float)) % kScaleAlignment == 0;
  if (many || !aligned || problem.batch > kMostSequences) return general_kernel(problem);
  switch (problem.rows_of_sequence()) {
    case 1: return few ? for_decode<32, 1>() : for_decode<64, 1>();
    case 2: return few ? for_decode<32, 2>() : for_decode<64, 2>();
    default: return general_kernel(problem);
  }
}

Params params_of(const IndexLogitsProblem& problem, const Kernel& kernel, int multiprocessors) {
  Params params{};
  params.shape = problem;
  params.box = box_of(problem);
  params.bf16_out = problem.out_dtype == DType::bf16;
  params.page = divmod_by(problem.page);
  params.sequence_rows = divmod_by(problem.rows_of_sequence());
  params.room = static_cast<int>(problem.paged ? std::min(problem.max_blocks * problem.page, problem.columns) : problem.columns);
  const std::int64_t tiles = detail::ceil_div(problem.columns, kernel.keys), rows = problem.rows_of_sequence();
  const std::int64_t most = std::clamp<std::int64_t>(rows, 1, indexer::kMostRows);
  const std::int64_t even = problem.rows * tiles / (std::int64_t{kTilesOfCta} * multiprocessors);
  params.rows_of_group = static_cast<int>(kernel.queries > 0 ? kernel.queries : std::clamp<std::int64_t>(even, 1, most));
  const std::int64_t groups = detail::ceil_div(rows, params.rows_of_group), sequences = problem.paged ? problem.batch : 1;
  params.sequence_groups = divmod_by(groups);
  params.groups = static_cast<int>(std::min(groups * sequences, kCountLimit));
  params.ctas = static_cast<int>(std::clamp<std::int64_t>(params.groups * tiles, 1, multiprocessors));
  params.share = std::numeric_limits<std::uint32_t>::max() / static_cast<std::uint32_t>(params.ctas);
  return params;
}

/// Rows of 128 bytes, in two dimensions beside their columns.
Result<void> encode(CUtensorMap& map, const void* data, TensorMapDesc::Dimension inner, TensorMapDesc::Dimension outer) {
  const auto any_if_one = [](TensorMapDesc::Dimension dimension) {
    if (dimension.extent <= 1) dimension.extent = 1, dimension.stride = indexer::kDim;
    return dimension;
  };
  const TensorMapDesc::Dimension one{1, indexer::kDim, 1};
  TensorMapDesc desc{.dtype = DType::e4m3, .rank = 5};
  desc.dimensions = {{{indexer::kDim, 1, indexer::kDim}, any_if_one(inner), one, one, any_if_one(outer)}};
  const Result<CUtensorMap> encoded = encode_tensor_map(data, desc);
  if (!encoded) return encoded.error();
  map = *encoded;
  return {};
}

/// A kernel with its parameters, as far as a plan knows them.
struct Choice {
  Choice(const IndexLogitsProblem& problem, const Kernel& kernel_, int multiprocessors)
      : kernel(kernel_), params(params_of(problem, kernel_, multiprocessors)) {}

  Kernel kernel;
  Params params;
};

class State final : public PlanState<IndexLogitsProblem, IndexLogitsArgs> {
 public:
  State(const IndexLogitsProblem& problem, Device device)
      : PlanState(kName, problem, device),
        usual_(problem, kernel_of(problem), properties(device)->multiprocessors),
        general_(problem, general_kernel(problem), properties(device)->multiprocessors) {}

  std::string tuning() const override {
    const auto& [kernel, params] = usual_;
    const std::string keys = std::to_string(kernel.keys), queries = std::to_string(params.rows_of_group);
    return (kernel.queries > 0 ? queries + " queries resident, stages of " + keys + " keys, "
                               : keys + " keys resident, up to " + queries + " queries a group, ") +
           "equal shares for " + std::to_string(params.ctas) + " CTAs, " + std::to_string(kernel.heads) + " heads a query and MMA" +
           kE4m3Products;
  }

  /// The most that all groups may cost, which kernels count in an int.
  std::int64_t cost() const {
    const auto& [kernel, params] = usual_;
    return params.groups * (detail::ceil_div(problem_.columns, kernel.keys) * kernel.stage_cost(params.rows_of_group) + 1);
  }

 private:
  bool is_empty() const override { return problem_.rows * problem_.columns == 0; }

  Result<void> compute(const IndexLogitsArgs& args, Workspace, Stream stream, bool) const override {
    const IndexLogitsProblem& p = problem_;
    const bool aligned = reinterpret_cast<std::uintptr_t>(args.k_scale) % kScaleAlignment == 0;
    const auto& [kernel, planned] = usual_.kernel.aligned_scales && !aligned ? general_ : usual_;
    Params params = planned;
    params.args = args_in_use(p, args);
    const int queries = std::max(kernel.queries, 1);
    if (Result<void> good = encode(params.q, args.q, {p.heads, p.q_head, kernel.heads}, {p.rows, p.q_row, queries}); !good) return good;
    const void* k = p.blocks > 0 ? args.k : args.q;  // a cache without blocks has no memory
    const Result<void> good = p.paged ? encode(params.k, k, {p.page, p.k_token, params.box}, {p.blocks, p.k_block, 1})
                                      : encode(params.k, k, {p.columns, p.k_block, params.box}, {1, 0, 1});
    if (!good) return good;
    return kernel.launch(params, device_.ordinal, stream);
  }

  Choice usual_;
  Choice general_;  ///< for scales that are not aligned
};

/// Declines strides that no tensor map describes.
Result<void> accept_strides(const IndexLogitsProblem& problem) {
  const std::tuple<const char*, std::int64_t, std::int64_t> strides[]{{"q.strides", problem.rows, problem.q_row},
                                                                      {"q.strides", problem.heads, problem.q_head},
                                                                      {"k.strides", problem.blocks, problem.k_block},
                                                                      {"k.strides", problem.page, problem.k_token}};
  for (const auto& [name, extent, stride] : strides) {
    if (extent > 1 && (stride <= 0 || stride >= kStrideLimit)) return declined(name, stride, "from 1 to 2^40 - 1");
  }
  return {};
}

detail::PlanResult<IndexLogitsArgs> plan(const IndexLogitsProblem& problem, Device device) {
  if (auto reason = decline_device(device, kCapability, kCapability)) return *reason;
  if (problem.head_dim != indexer::kDim) return declined("q.shape[2] (head_dim)", problem.head_dim, "128");
  if (problem.q_alignment % 16 != 0) return declined("q (alignment of rows in bytes)", problem.q_alignment, "a multiple of 16");
  if (problem.paged && problem.page % indexer::kLeastBox != 0) return declined("k.shape[1] (page)", problem.page, "a multiple of 8");
  if (problem.k_alignment % 16 != 0) return declined("k (alignment of rows in bytes)", problem.k_alignment, "a multiple of 16");
  for (const auto& [name, count] : {std::pair{"q.shape[0] (row)", problem.rows},
                                    {"q.shape[1] (head)", problem.heads},
                                    {"k.shape[1] (page)", problem.page},
                                    {"out.shape[1] (column)", problem.columns}}) {
    if (count >= kCountLimit) return declined(name, count, "below 2^30");
  }
  if (Result<void> good = accept_strides(problem); !good) return good.error();
  auto state = std::make_shared<State>(problem, device);
  if (state->cost() >= kCountLimit) return declined("out.shape (queries times stages of keys)", state->cost(), "below 2^30");
  return std::shared_ptr<const detail::PlanState<IndexLogitsArgs>>(std::move(state));
}

constexpr detail::Implementation<detail::IndexLogits> kRow{
    kName,
    "e4m3 q and k, flat or paged; head dim 128; pages of a multiple of 8; rows aligned to 16 bytes",
    detail::handles<detail::IndexLogits>("block_table", "first", "last", "keep_outside"),
    Backend::cuda,
    unavailable<kCapability, kCapability>,
    plan};

}  // namespace

detail::Implementations<detail::IndexLogits> implementations(detail::IndexLogits) { return {&kRow, 1}; }

}  // namespace fovea::gpu::sm90
