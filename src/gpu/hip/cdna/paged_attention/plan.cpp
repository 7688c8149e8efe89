// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <memory>
#include <string>

#include "gpu/hip/cdna/implementations.hpp"
#include "gpu/hip/cdna/paged_attention/params.hpp"
#include "gpu/hip/cdna/paged_attention/tuning.hpp"
#include "gpu/hip/plan_state.hpp"
#include "op/paged_attention/validate.hpp"

namespace fovea::gpu::cdna {
namespace paged_attention {
namespace {

using Problem = detail::PagedAttentionProblem;

constexpr std::string_view kName = "hip.cdna.paged_attention";
constexpr int kMostHeadDim = kTunings.back().head_dim;
constexpr std::int64_t kLimit = std::int64_t{1} << 30, kMostKvHeads = 65535;

Result<void> accept(const Problem& problem) {
  if (problem.q_dtype != DType::f16 && problem.q_dtype != DType::bf16)
    return detail::declined("q.dtype", name_of(problem.q_dtype), "f16 or bf16");
  for (const auto& [name, dim] : {std::pair{"q.shape (head_dim)", problem.head_dim_qk}, {"v_cache.shape (head_dim)", problem.head_dim_v}}) {
    if (dim > kMostHeadDim) return detail::declined(name, dim, "at most " + std::to_string(kMostHeadDim));
    if (dim % 8 != 0) return detail::declined(name, dim, "a multiple of 8");
  }
  for (const auto& [name, count] : {std::pair{"q.shape (rows)", problem.total_q * problem.group()},
                                    {"max_kv_len", problem.max_seq_k},
                                    {"k_cache.shape (page)", problem.page},
                                    {"batch", problem.batch}}) {
    if (count >= kLimit) return detail::declined(name, count, "below 2^30");
  }
  if (problem.kv_heads > kMostKvHeads) return detail::declined("k_cache.shape (kv_head)", problem.kv_heads, "at most 65535");
  return {};
}

class State final : public hip::PlanState<Problem, PagedAttentionArgs> {
 public:
  State(const Problem& problem, Device device, int compute_units)
      : PlanState(kName, problem, device),
        tuning_(kTunings[tuning_index(problem.head_dim_qk, problem.head_dim_v, problem.total_q * problem.group(), problem.batch)]) {
    query_tiles_ = query_tiles(tuning_.row_tile());
    fill_shape();
    if (!problem.batch_invariant) split(compute_units);
  }

  /// Loads the kernels, which a device that is only described has not.
  Result<void> load() {
    const std::string_view dtype = problem_.q_dtype == DType::f16 ? "_f16" : "_bf16";
    const std::string kernel =
        std::string("paged_attention_").append(tuning_.name).append(dtype) + (problem_.kv_dtype == DType::e4m3 ? "_on_e4m3" : "");
    for (const auto& [source, name, to] : {std::tuple{tuning_.name, kernel, &attend_}, {"clear", "paged_attention_clear", &clear_}}) {
      Result<hip::FunctionHandle> found = hip::find_kernel(device_.ordinal, source, name);
      if (!found) return found.error();
      *to = *found;
    }
    return {};
  }

  std::int64_t query_tiles() const { return query_tiles_; }

  std::string tuning() const override {
    std::string text = std::to_string(tuning_.row_tile()) + " x " + std::to_string(tuning_.key_tile) + " tiles for head dims up to " +
                       std::to_string(tuning_.head_dim);
    if (tuning_.key_waves > 1) text += ", keys divided by " + std::to_string(tuning_.key_waves) + " waves";
    if (params_.splits > 1) text += ", keys in " + std::to_string(params_.splits) + " splits";
    return text + FOVEA_HIP_STATUS;
  }

 private:
  /// The most of a batch: every sequence may end inside of one.
  std::int64_t query_tiles(std::int64_t tile) const {
    const std::int64_t group = problem_.group(), of_sequence = (problem_.max_seq_q * group + tile - 1) / tile;
    return std::min(problem_.total_q * group / tile + problem_.batch, problem_.batch * of_sequence);
  }

  /// Room for counters, then for partial results. Bounds that grow never take less, though they may split less.
  void split(int compute_units) {
    const std::int64_t keys = problem_.max_seq_k, partials = most_partials(query_tiles(16) * problem_.kv_heads, keys, compute_units);
    const bool computes = tuning_.key_waves == 1 || problem_.kv_dtype == DType::e4m3;
    params_.splits =
        static_cast<int>(splits_of(query_tiles_ * problem_.kv_heads, tuning_.row_tile() / 16, keys, partials, compute_units, computes));
    counter_bytes_ = (partials * static_cast<std::int64_t>(sizeof(int)) + 63) / 64 * 64;
    workspace_bytes =
        static_cast<std::size_t>(counter_bytes_ + partials * tuning_.state_words() * static_cast<std::int64_t>(sizeof(float)));
  }

  bool is_empty() const override { return problem_.total_q == 0 || query_tiles_ == 0; }

  Result<void> schedule(const PagedAttentionArgs&, Workspace workspace, Stream stream) const override {
    if (params_.splits == 1) return {};
    const ClearParams params{counters(workspace), counter_count()};
    const unsigned groups = static_cast<unsigned>((params.count + kClearThreads - 1) / kClearThreads);
    return hip::launch(clear_, {.grid = {groups, 1, 1}, .threads = kClearThreads}, stream, &params);
  }

  Result<void> compute(const PagedAttentionArgs& args, Workspace workspace, Stream stream, bool prepared) const override {
    if (!prepared) {
      if (Result<void> scheduled = schedule(args, workspace, stream); !scheduled) return scheduled;
    }
    const Params params = filled(args, workspace);
    const hip::LaunchShape shape{
        .grid = {static_cast<unsigned>(query_tiles_), static_cast<unsigned>(problem_.kv_heads), static_cast<unsigned>(params_.splits)},
        .threads = 64 * kWaves};
    return hip::launch(attend_, shape, stream, &params);
  }

  void fill_shape() {
    const Problem& p = problem_;
    params_.q_strides = p.q;
    params_.out_strides = p.out;
    params_.lse_strides = p.lse;
    params_.k = p.k;
    params_.v = p.v;
    params_.table_stride = p.table_stride;
    if (p.k_scale) params_.k_scale_stride = p.k_scale->head_stride;
    if (p.v_scale) params_.v_scale_stride = p.v_scale->head_stride;
    params_.batch = static_cast<int>(p.batch);
    params_.seq_q = static_cast<int>(p.max_seq_q);
    params_.seq_k = static_cast<int>(p.max_seq_k);
    params_.kv_heads = static_cast<int>(p.kv_heads);
    params_.head_dim_qk = static_cast<int>(p.head_dim_qk);
    params_.head_dim_v = static_cast<int>(p.head_dim_v);
    params_.group = detail::Divider(static_cast<int>(p.group()));
    params_.page = detail::Divider(static_cast<int>(std::max<std::int64_t>(p.page, 1)));
    params_.mask = p.mask;
    params_.scale = static_cast<float>(p.scale);
    params_.softcap = static_cast<float>(p.softcap);
    params_.general = !has_short_strides(p.k) || !has_short_strides(p.v) || p.page % 4 != 0 || p.head_dim_qk != tuning_.head_dim ||
                      p.head_dim_v != tuning_.head_dim;
  }

  /// In bytes, and the tokens of a block lie within as many.
  bool has_short_strides(const detail::CacheStrides& strides) const {
    const std::int64_t most = std::numeric_limits<std::uint32_t>::max() / static_cast<std::int64_t>(size_of(problem_.kv_dtype));
    return strides.block >= 0 && strides.block <= most && strides.token >= 0 &&
           strides.token <= most / std::max<std::int64_t>(problem_.page, 1);
  }

  int counter_count() const { return static_cast<int>(query_tiles_ * problem_.kv_heads * tuning_.row_waves()); }
  static int* counters(Workspace workspace) { return static_cast<int*>(workspace.data); }

  /// With what only a run knows.
  Params filled(const PagedAttentionArgs& args, Workspace workspace) const {
    Params params = params_;
    params.q = args.q;
    params.k_cache = args.k_cache;
    params.v_cache = args.v_cache;
    params.out = args.out;
    params.lse = problem_.has_lse ? args.lse : nullptr;
    params.sink = problem_.has_sink ? args.sink : nullptr;
    params.k_scale = problem_.k_scale ? args.k_scale : nullptr;
    params.v_scale = problem_.v_scale ? args.v_scale : nullptr;
    params.block_table = args.block_table;
    params.cu_seqlens_q = args.cu_seqlens_q;
    params.kv_len = args.kv_len;
    if (params.splits > 1) {
      params.counters = counters(workspace);
      params.partials = reinterpret_cast<float*>(static_cast<std::byte*>(workspace.data) + counter_bytes_);
    }
    return params;
  }

  const Tuning& tuning_;
  std::int64_t query_tiles_ = 0, counter_bytes_ = 0;
  Params params_{};
  hip::FunctionHandle attend_ = nullptr, clear_ = nullptr;
};

detail::PlanResult<PagedAttentionArgs> plan(const Problem& problem, Device device) {
  if (auto reason = hip::decline_device(device)) return *reason;
  if (Result<void> good = accept(problem); !good) return good.error();
  auto state = std::make_shared<State>(problem, device, hip::properties(device)->compute_units);
  if (state->query_tiles() > hip::kMostWorkgroups) {
    return detail::declined("q.shape (query tiles)", state->query_tiles(), "at most " + std::to_string(hip::kMostWorkgroups));
  }
  if (device.capability == 0) {
    if (Result<void> loaded = state->load(); !loaded) return loaded.error();
  }
  return std::shared_ptr<const detail::PlanState<PagedAttentionArgs>>(std::move(state));
}

constexpr detail::Implementation<detail::PagedAttention> kRow{
    kName,
    "f16, bf16 queries on caches of their dtype or e4m3; head dims that are multiples of 8 up to 256; any page and "
    "strides" FOVEA_HIP_STATUS,
    detail::handles<detail::PagedAttention>("mask.left", "mask.right", "softcap", "sink", "lse", "k_scale", "v_scale",
                                            "options.batch_invariant"),
    Backend::hip,
    hip::unavailable,
    plan};

}  // namespace
}  // namespace paged_attention

detail::Implementations<detail::PagedAttention> implementations(detail::PagedAttention) { return {&paged_attention::kRow, 1}; }

}  // namespace fovea::gpu::cdna
