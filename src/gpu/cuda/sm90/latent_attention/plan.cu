// SPDX-License-Identifier: Apache-2.0
/// Accepts or declines, books the workspace, and launches: schedule, attention, combination.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "gpu/cuda/sm90/implementations.hpp"
#include "gpu/cuda/sm90/latent_attention/launch.hpp"
#include "gpu/tensor_map.hpp"
#include "op/latent_attention/validate.hpp"

namespace fovea::gpu::sm90::latent {
namespace {

using detail::LatentAttentionProblem;

constexpr std::string_view kName = "cuda.sm90.latent_attention";
constexpr int kRequestOverhead = 2;  // pairs of key tiles; H200: 0 to 3 are within noise, 6 costs 4 % at 128 requests of 4096
constexpr std::int64_t kMaxPairs = std::int64_t{1} << 30;
constexpr std::size_t kAlignment = 256;

constexpr std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

constexpr std::int64_t tiles_of(std::int64_t count, std::int64_t tile) { return (count + tile - 1) / tile; }

/// 16-bit strides in elements.
constexpr bool is_copyable(std::int64_t stride) { return stride % 8 == 0; }
constexpr bool is_copyable(const detail::RowStrides& s) { return is_copyable(s.batch) && is_copyable(s.row) && is_copyable(s.head); }

/// The tile shapes and grid that follow from the problem.
struct Shape {
  int cluster = 1, row_tiles = 1, parts = 1;
};

Shape shape_of(const LatentAttentionProblem& problem, int processors) {
  Shape shape;
  shape.row_tiles = static_cast<int>(tiles_of(problem.max_seq_q * problem.group(), kRowTile));
  if (shape.row_tiles % 2 == 0) shape.cluster = 2;
  shape.parts = std::max(processors / static_cast<int>(shape.row_tiles * problem.kv_heads), 1);
  return shape;
}

Result<void> accept(const LatentAttentionProblem& problem) {
  using detail::declined;
  const detail::CacheStrides& cache = problem.cache.strides;
  if (problem.q_dtype == DType::f32) return declined("q.dtype", "f32", "f16 or bf16");
  if (problem.cache.format != CacheFormat::rows) return declined("cache.format", name_of(problem.cache.format), "rows");
  if (problem.kv_dtype != problem.q_dtype) return declined("cache.rows.dtype", name_of(problem.kv_dtype), "the dtype of q");
  if (problem.cache.page % kBoxRows != 0) return declined("cache.rows.shape[1] (page)", problem.cache.page, "a multiple of 8");
  if (problem.scale < 0) return declined("scale", "a negative one", "a positive one");
  const bool copyable =
      is_copyable(problem.q) && is_copyable(problem.out) && is_copyable(cache.block) && is_copyable(cache.token) && is_copyable(cache.head);
  const bool aligned_rows = problem.q_base_alignment >= 16 && problem.out_base_alignment >= 16 && problem.cache.alignment >= 16;
  if (!copyable || !aligned_rows)
    return declined("q, cache.rows, out (strides and alignment)", "rows at odd addresses", "rows at multiples of 16 bytes");
  if (cache.token == 0 || cache.block == 0) return declined("cache.rows.strides", "a broadcast one", "none");
  const std::int64_t pairs = tiles_of(problem.max_seq_k, kPair) + kRequestOverhead;
  if (pairs > kMaxPairs / std::max<std::int64_t>(problem.batch, 1))
    return declined("max_kv_len", problem.max_seq_k, "fewer tokens in the whole batch");
  if (problem.max_seq_q * problem.group() > (1 << 26)) return declined("max_seq_q", problem.max_seq_q, "fewer query rows");
  return {};
}

class State final : public detail::PlanState<LatentAttentionArgs> {
 public:
  State(const LatentAttentionProblem& problem, Device device, int processors)
      : problem_(problem), device_(device), processors_(processors), shape_(shape_of(problem, processors)) {
    implementation = kName;
    if (problem.total_q > 0) workspace_bytes = map(nullptr, nullptr);
  }

  Result<void> prepare(const LatentAttentionArgs& args, Workspace workspace, Stream stream) const override {
    return with_params(args, workspace, [&](const Params& params) { return launch_schedule(params, stream); });
  }

  Result<void> run(const LatentAttentionArgs& args, Workspace workspace, Stream stream, bool prepared) const override {
    return with_params(args, workspace, [&](const Params& params) -> Result<void> {
      if (!prepared) {
        if (Result<void> good = launch_schedule(params, stream); !good) return good;
      }
      if (Result<void> good = attend_of()(params, device_.ordinal, stream); !good) return good;
      if (params.parts == 1 || params.whole) return {};
      const int groups = params.parts / params.batch >= 4 ? 8 : 1;
      return (problem_.q_dtype == DType::f16 ? launch_combine<__half> : launch_combine<__nv_bfloat16>)(params, groups, stream);
    });
  }

  std::string tuning() const override {
    return "64 x 64 tiles, " + std::to_string(shape_.parts) + " parts of " + std::to_string(shape_.row_tiles * problem_.kv_heads) +
           " row tiles, clusters of " + std::to_string(shape_.cluster);
  }

 private:
  using Attend = Result<void> (*)(const Params&, int, Stream);

  template <class Element>
  static Attend attend_of(std::int64_t head_dim, int cluster) {
    if (head_dim == 576) return cluster == 2 ? launch_attend<Config<Element, 576, 2>> : launch_attend<Config<Element, 576, 1>>;
    return cluster == 2 ? launch_attend<Config<Element, 512, 2>> : launch_attend<Config<Element, 512, 1>>;
  }
  Attend attend_of() const {
    return problem_.q_dtype == DType::f16 ? attend_of<__half>(problem_.head_dim_qk, shape_.cluster)
                                          : attend_of<__nv_bfloat16>(problem_.head_dim_qk, shape_.cluster);
  }

  /// Lays out the workspace, from `base` on, and returns its size. Partial results are booked for all parts of the device, which is the
  /// most that any bound can need: a part has two of them.
  std::size_t map(Params* params, std::byte* base) const {
    std::size_t at = 0;
    const auto take = [&](std::size_t bytes) { return base + std::exchange(at, at + aligned(bytes)); };
    const std::size_t slots = 2 * static_cast<std::size_t>(processors_);
    std::byte* prefix = take((static_cast<std::size_t>(problem_.batch) + 2) * sizeof(int));
    std::byte* first_request = take(static_cast<std::size_t>(processors_) * sizeof(int));
    std::byte* partial_lse = take(slots * kRowTile * sizeof(float));
    std::byte* partial = take(slots * kRowTile * kValueDim * sizeof(float));
    if (params != nullptr) {
      params->prefix = reinterpret_cast<int*>(prefix);
      params->first_request = reinterpret_cast<int*>(first_request);
      params->partial_lse = reinterpret_cast<float*>(partial_lse);
      params->partial = reinterpret_cast<float4*>(partial);
    }
    return at + kAlignment;  // the workspace itself is aligned to less
  }

  template <class Run>
  Result<void> with_params(const LatentAttentionArgs& args, Workspace workspace, Run&& run) const {
    if (Result<void> good = check_args(problem_, args); !good) return good;
    if (Result<void> good = detail::check_workspace(workspace, workspace_bytes); !good) return good;
    if (problem_.total_q == 0 || problem_.batch == 0) return {};
    const ScopedDevice device(device_.ordinal);
    if (!device.status()) return device.status();
    Params params = fixed_params();
    const auto address = reinterpret_cast<std::uintptr_t>(workspace.data);
    map(&params, reinterpret_cast<std::byte*>((address + kAlignment - 1) / kAlignment * kAlignment));
    params.q = args.q;
    params.out = args.out;
    params.lse = problem_.has_lse ? args.lse : nullptr;
    params.block_table = args.block_table;
    params.kv_len = args.kv_len;
    params.cu_seqlens_q = problem_.ragged ? args.cu_seqlens_q : nullptr;
    if (Result<void> good = encode_maps(params, args); !good) return good;
    return run(params);
  }

  Params fixed_params() const {
    Params params{};
    params.q_batch = problem_.q.batch, params.q_row = problem_.q.row, params.q_head = problem_.q.head;
    params.out_batch = problem_.out.batch, params.out_row = problem_.out.row, params.out_head = problem_.out.head;
    params.lse_batch = problem_.lse.batch, params.lse_row = problem_.lse.row, params.lse_head = problem_.lse.head;
    params.table_stride = problem_.table_stride;
    params.batch = static_cast<int>(problem_.batch);
    params.seq_q = static_cast<int>(problem_.max_seq_q);
    params.max_kv_len = static_cast<int>(problem_.max_seq_k);
    params.heads_per_kv = static_cast<int>(problem_.group());
    params.kv_heads = static_cast<int>(problem_.kv_heads);
    params.row_tiles = shape_.row_tiles;
    params.parts = shape_.parts;
    params.page = static_cast<int>(problem_.cache.page);
    params.blocks = static_cast<int>(problem_.cache.blocks);
    params.mask = problem_.mask;
    params.scale_log2 = problem_.scale * 1.44269504088896341f;
    params.overhead = kRequestOverhead;
    params.whole = problem_.batch_invariant;
    params.copy_queries = params.heads_per_kv % kBoxRows == 0 && problem_.q.head > 0 && (problem_.q.row > 0 || problem_.max_seq_q == 1) &&
                          (problem_.q.batch > 0 || problem_.ragged || problem_.batch == 1);
    return params;
  }

  Result<void> encode_maps(Params& params, const LatentAttentionArgs& args) const {
    const detail::LatentCacheView& cache = problem_.cache;
    const std::int64_t slices = problem_.head_dim_qk / kSlice;
    const int right = static_cast<int>(slices) - kHalfSlices;
    const auto encode = [&](CUtensorMap& map, const void* base, const TensorMapDesc& desc) -> Result<void> {
      const Result<CUtensorMap> encoded = encode_tensor_map(base, desc);
      if (!encoded) return encoded.error();
      map = *encoded;
      return {};
    };
    const auto at_least_8 = [](std::int64_t stride) { return std::max<std::int64_t>(stride, 8); };  // of a dimension of extent 1
    TensorMapDesc keys{.dtype = problem_.kv_dtype, .rank = 5};
    keys.dimensions = {{{kSlice, 1, kSlice},
                        {cache.page, cache.strides.token, kBoxRows},
                        {slices, kSlice, kHalfSlices},
                        {cache.kv_heads, at_least_8(cache.strides.head), 1},
                        {std::max<std::int64_t>(cache.blocks, 1), cache.strides.block, 1}}};
    if (Result<void> good = encode(params.left, args.cache, keys); !good) return good;
    keys.dimensions[2].box = right;
    if (Result<void> good = encode(params.right, args.cache, keys); !good || !params.copy_queries) return good;
    TensorMapDesc queries{.dtype = problem_.q_dtype, .rank = 5};
    queries.dimensions = {{{kSlice, 1, kSlice},
                           {problem_.heads, problem_.q.head, kBoxRows},
                           {slices, kSlice, static_cast<int>(slices)},
                           {problem_.ragged ? problem_.total_q : problem_.max_seq_q, at_least_8(problem_.q.row), 1},
                           {problem_.ragged ? 1 : problem_.batch, at_least_8(problem_.q.batch), 1}}};
    return encode(params.queries, args.q, queries);
  }

  LatentAttentionProblem problem_;
  Device device_;
  int processors_;
  Shape shape_;
};

detail::PlanResult<LatentAttentionArgs> plan(const LatentAttentionProblem& problem, Device device) {
  if (auto reason = decline_device(device, kCapability, kCapability)) return *reason;
  if (Result<void> good = accept(problem); !good) return good.error();
  const int processors = properties(device.ordinal)->multiprocessors;
  return std::shared_ptr<const detail::PlanState<LatentAttentionArgs>>(std::make_shared<State>(problem, device, processors));
}

constexpr detail::Implementation<detail::LatentAttention> kRow{
    kName, "f16 and bf16 rows of 576 or 512; any heads and query length, pages of a multiple of 8", Backend::cuda,
    unavailable<kCapability, kCapability>, plan};

}  // namespace
}  // namespace fovea::gpu::sm90::latent

namespace fovea::gpu::sm90 {

detail::Implementations<detail::LatentAttention> implementations(detail::LatentAttention) { return {&latent::kRow, 1}; }

}  // namespace fovea::gpu::sm90
