// SPDX-License-Identifier: Apache-2.0
/// The common part of plans of these kernels, for paged and dense attention: tuning, splits, workspace, launch.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <string>
#include <string_view>

#include "gpu/hip/cdna/paged_attention/params.hpp"
#include "gpu/hip/cdna/paged_attention/tuning.hpp"
#include "gpu/hip/plan_state.hpp"
#include "op/common/attention_core.hpp"
#include "op/common/division.hpp"

namespace fovea::gpu::cdna::paged_attention {

inline constexpr int kMostHeadDim = kTunings.back().head_dim;
inline constexpr std::int64_t kLimit = std::int64_t{1} << 30, kMostKvHeads = 65535;

/// Where keys and values are. A dense tensor is a cache whose block is a sequence.
struct CacheShape {
  detail::CacheStrides k{}, v{};
  std::int64_t page = 0;
  std::size_t bytes = 2;  ///< of what strides count
};

/// Whether query tiles of all waves pay. Tiles say in which order a row's keys are added up. With batch_invariant, one token's heads
/// choose them: neither other sequences nor lengths may.
inline bool is_prefill(const detail::AttentionCore& core) {
  return core.batch_invariant ? is_prefill(core.group(), 1) : is_prefill(core.total_q * core.group(), core.batch);
}

inline const Named<Tuning>& tuning_of(const detail::AttentionCore& core) {
  return kTunings[tuning_index(core.head_dim_qk, core.head_dim_v, is_prefill(core))];
}

template <class Problem, class Args>
class AttendPlan : public hip::PlanState<Problem, Args> {
 public:
  /// Loads the kernels, which a device that is only described has not.
  Result<void> load() {
    const std::string_view dtype = problem_.q_dtype == DType::f16 ? "_f16" : "_bf16";
    const std::string_view cache = problem_.kv_dtype == DType::e4m3 ? "_on_e4m3" : "";
    const std::string kernel = std::string("paged_attention_").append(tuning_.name).append(dtype).append(cache);
    for (const auto& [source, name, to] : {std::tuple{tuning_.name, kernel, &attend_}, {"clear", "paged_attention_clear", &clear_}}) {
      Result<hip::FunctionHandle> found = hip::find_kernel(this->device_.ordinal, source, name);
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

 protected:
  AttendPlan(std::string_view name, const Problem& problem, Device device, const CacheShape& caches, const Named<Tuning>& tuning)
      : hip::PlanState<Problem, Args>(name, problem, device), tuning_(tuning) {
    query_tiles_ = query_tiles(tuning_.row_tile());
    fill_shape(caches);
    if (!problem.batch_invariant) split(hip::properties(device)->compute_units, tuning_.key_waves == 1 || caches.bytes == 1);
  }

  /// Sets the tensors of a run.
  virtual void point(Params& params, const Args& args) const = 0;

  using hip::PlanState<Problem, Args>::problem_;
  Params params_{};

 private:
  /// The most of a batch: every sequence may end inside of one.
  std::int64_t query_tiles(std::int64_t tile) const {
    const std::int64_t group = problem_.group(), of_sequence = detail::ceil_div(problem_.max_seq_q * group, tile);
    return std::min(problem_.total_q * group / tile + problem_.batch, problem_.batch * of_sequence);
  }

  /// Room for counters, then for partial results. Bounds that grow never take less, though they may split less.
  void split(int compute_units, bool computes) {
    const std::int64_t keys = problem_.max_seq_k, partials = most_partials(query_tiles(16) * problem_.kv_heads, keys, compute_units);
    params_.splits =
        static_cast<int>(splits_of(query_tiles_ * problem_.kv_heads, tuning_.row_tile() / 16, keys, partials, compute_units, computes));
    counter_bytes_ = detail::round_up(partials * static_cast<std::int64_t>(sizeof(int)), std::int64_t{64});
    this->workspace_bytes =
        static_cast<std::size_t>(counter_bytes_ + partials * tuning_.state_words() * static_cast<std::int64_t>(sizeof(float)));
  }

  bool is_empty() const override { return problem_.total_q == 0 || query_tiles_ == 0; }

  Result<void> schedule(const Args&, Workspace workspace, Stream stream) const override {
    if (params_.splits == 1) return {};
    const ClearParams params{counters(workspace), counter_count()};
    const unsigned groups = static_cast<unsigned>(detail::ceil_div(params.count, kClearThreads));
    return hip::launch(clear_, {.grid = {groups, 1, 1}, .threads = kClearThreads}, stream, &params);
  }

  Result<void> compute(const Args& args, Workspace workspace, Stream stream, bool prepared) const override {
    if (!prepared) {
      if (Result<void> scheduled = schedule(args, workspace, stream); !scheduled) return scheduled;
    }
    Params params = params_;
    point(params, args);
    if (params.splits > 1) {
      params.counters = counters(workspace);
      params.partials = reinterpret_cast<float*>(static_cast<std::byte*>(workspace.data) + counter_bytes_);
    }
    const hip::LaunchShape shape{
        .grid = {static_cast<unsigned>(query_tiles_), static_cast<unsigned>(problem_.kv_heads), static_cast<unsigned>(params_.splits)},
        .threads = 64 * kWaves};
    return hip::launch(attend_, shape, stream, &params);
  }

  void fill_shape(const CacheShape& caches) {
    const Problem& p = problem_;
    params_.q_strides = p.q;
    params_.out_strides = p.out;
    params_.lse_strides = p.lse;
    params_.k = caches.k;
    params_.v = caches.v;
    params_.batch = static_cast<int>(p.batch);
    params_.seq_q = static_cast<int>(p.max_seq_q);
    params_.seq_k = static_cast<int>(p.max_seq_k);
    params_.kv_heads = static_cast<int>(p.kv_heads);
    params_.head_dim_qk = static_cast<int>(p.head_dim_qk);
    params_.head_dim_v = static_cast<int>(p.head_dim_v);
    params_.group = divmod_by(p.group());
    params_.page = divmod_by(caches.page);
    params_.mask = p.mask;
    params_.scale = static_cast<float>(p.scale);
    params_.softcap = static_cast<float>(p.softcap);
    const std::int64_t slots = std::min(caches.page, p.max_seq_k);
    const bool short_strides = has_short_strides(caches.k, slots, caches.bytes) && has_short_strides(caches.v, slots, caches.bytes);
    params_.general = !short_strides || caches.page % 4 != 0 || p.head_dim_qk != tuning_.head_dim || p.head_dim_v != tuning_.value_dim;
  }

  /// In bytes, and the tokens of a block lie within as many.
  static bool has_short_strides(const detail::CacheStrides& strides, std::int64_t slots, std::size_t bytes) {
    const std::int64_t most = std::numeric_limits<std::uint32_t>::max() / static_cast<std::int64_t>(bytes);
    return strides.block >= 0 && strides.block <= most && strides.token >= 0 && strides.token <= most / std::max<std::int64_t>(slots, 1);
  }

  int counter_count() const { return static_cast<int>(query_tiles_ * problem_.kv_heads * tuning_.row_waves()); }
  static int* counters(Workspace workspace) { return static_cast<int*>(workspace.data); }

  const Named<Tuning>& tuning_;
  std::int64_t query_tiles_ = 0, counter_bytes_ = 0;
  hip::FunctionHandle attend_ = nullptr, clear_ = nullptr;
};

/// A plan of `State`, once the problem is accepted.
template <class State, class Args, class Problem>
detail::PlanResult<Args> made_plan(const Problem& problem, Device device) {
  auto state = std::make_shared<State>(problem, device);
  if (state->query_tiles() > hip::kMostWorkgroups) {
    return detail::declined("q.shape (query tiles)", state->query_tiles(), "at most " + std::to_string(hip::kMostWorkgroups));
  }
  if (device.capability == 0) {
    if (Result<void> loaded = state->load(); !loaded) return loaded.error();
  }
  return std::shared_ptr<const detail::PlanState<Args>>(std::move(state));
}

}  // namespace fovea::gpu::cdna::paged_attention
