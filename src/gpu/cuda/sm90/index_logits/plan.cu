// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "gpu/cuda/common/attention_plan.hpp"
#include "gpu/cuda/sm90/implementations.hpp"
#include "gpu/cuda/sm90/index_logits/kernel.cuh"
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

bool has_few_heads(const IndexLogitsProblem& problem) { return problem.heads <= 32; }

/// Keys of one page, or of flat keys.
int box_of(const IndexLogitsProblem& problem) {
  return problem.paged ? static_cast<int>(std::gcd<std::int64_t>(problem.page, indexer::kMostBox)) : indexer::kMostBox;
}

Params params_of(const IndexLogitsProblem& problem, int multiprocessors) {
  Params params{};
  params.shape = problem;
  params.box = box_of(problem);
  params.bf16_out = problem.out_dtype == DType::bf16;
  const std::int64_t tiles = detail::ceil_div(problem.columns, Config<64>::kKeys), rows = problem.rows_of_sequence();
  const std::int64_t even = problem.rows * tiles / (std::int64_t{kTilesOfCta} * multiprocessors);
  params.rows_of_group = static_cast<int>(std::clamp<std::int64_t>(std::min(even, rows), 1, indexer::kMostRows));
  params.groups_of_sequence = static_cast<int>(detail::ceil_div(rows, params.rows_of_group));
  params.key_tiles = static_cast<int>(tiles);
  const std::int64_t groups = params.groups_of_sequence * (problem.paged ? problem.batch : 1);
  params.work_tiles = static_cast<int>(std::min(groups * tiles, kCountLimit));
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

template <int kHeads>
Result<void> launch_kernel(const Params& params, int ctas, int ordinal, Stream stream) {
  constexpr auto kKernel = &indexer::index_logits<Config<kHeads>>;
  constexpr std::size_t kBytes = sizeof(indexer::Storage<Config<kHeads>>);
  static_assert(kBytes <= 227 * 1024);
  if (Result<void> good = allow_shared_bytes<kKernel>(ordinal, kBytes); !good) return good;
  return launch(kKernel, {.grid = dim3(ctas), .block = dim3(Config<kHeads>::kThreads), .shared_bytes = kBytes}, stream, params);
}

class State final : public PlanState<IndexLogitsProblem, IndexLogitsArgs> {
 public:
  State(const IndexLogitsProblem& problem, Device device)
      : PlanState(kName, problem, device),
        params_(params_of(problem, properties(device)->multiprocessors)),
        ctas_(std::min(params_.work_tiles, properties(device)->multiprocessors)) {}

  std::string tuning() const override {
    return std::to_string(Config<64>::kKeys) + " keys and up to " + std::to_string(params_.rows_of_group) + " queries a work tile, " +
           (has_few_heads(problem_) ? "32" : "64") + " heads an MMA" + kE4m3Products;
  }

  bool fits() const { return params_.work_tiles < kCountLimit; }

 private:
  bool is_empty() const override { return problem_.rows * problem_.columns == 0; }

  Result<void> compute(const IndexLogitsArgs& args, Workspace, Stream stream, bool) const override {
    const IndexLogitsProblem& p = problem_;
    Params params = params_;
    params.args = args_in_use(p, args);
    const int heads = has_few_heads(p) ? 32 : 64;
    if (Result<void> good = encode(params.q, args.q, {p.heads, p.q_head, heads}, {p.rows, p.q_row, 1}); !good) return good;
    const void* k = p.blocks > 0 ? args.k : args.q;  // a cache without blocks has no memory
    const Result<void> good = p.paged ? encode(params.k, k, {p.page, p.k_token, params.box}, {p.blocks, p.k_block, 1})
                                      : encode(params.k, k, {p.columns, p.k_block, params.box}, {1, 0, 1});
    if (!good) return good;
    const auto launch_it = has_few_heads(p) ? &launch_kernel<32> : &launch_kernel<64>;
    return launch_it(params, ctas_, device_.ordinal, stream);
  }

  Params params_;
  int ctas_;
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
  if (!state->fits()) return declined("out.shape (work tiles)", kCountLimit, "below 2^30");
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
